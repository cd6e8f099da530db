"""Code that is held until the step that all ranks have agreed on: what this rank knows of the agreement.

Whoever asks prepares the code on all ranks, names a step to all (`arm`), and when all have confirmed lets them run it
(`go`). A rank whose armed step ends before `go` has come runs nothing and waits for nothing: it is ready for a later
step. `go` can be taken back (`revoke`) until the step has ended. Once told to go, a rank does not mind when its client
leaves; before, it drops the code. The whole protocol, and what can still go wrong:
probe_cli/cluster/two_phase/coordinator.py.

The training thread and the threads of requests decide without a lock that one could wait for: who comes first, decides.
While code is held, the training thread pays some 20 µs a step; when none is held, nothing.
"""

from __future__ import annotations

import sys
from collections import deque
from time import monotonic
from typing import Any, Callable

from ..steps.queue import StepQueue
from ..steps.step import Step
from .run import Evaluation

__all__ = ["Ticket", "collectives_so_far"]

#: Steps whose marks are kept: two ranks that are looked at one after the other shall have some in common.
MAX_MARKS = 200
GO, LATE, RUN, REVOKED = "go", "late", "run", "revoked"


class _Once:
    """A decision that the first to come makes."""

    def __init__(self) -> None:
        self._made: dict[None, str] = {}

    def decide(self, what: str) -> str:
        """What was decided, by this call or an earlier one. One operation of dict: no other thread comes between."""
        return self._made.setdefault(None, what)

    @property
    def made(self) -> str | None:
        return self._made.get(None)


class _Attempt:
    """One step that the ranks tried to agree on: `may` is GO or LATE, then `does` is RUN or REVOKED."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.may = _Once()
        self.does = _Once()


class Ticket:
    """A job of the step queue that comes back after each step until it has run, or is dropped."""

    def __init__(
        self,
        evaluation: Evaluation,
        step: Step,
        queue: StepQueue,
        on_error: Callable[[str, BaseException], object],
    ) -> None:
        self._evaluation = evaluation
        self._step = step
        self._queue = queue
        self._on_error = on_error
        self._attempt: _Attempt | None = None
        self._leaving = False
        #: It will never run.
        self.is_dropped = False
        #: (step that ended, when, collectives so far), newest last.
        self._marks: deque[tuple[int, float, str | None]] = deque(maxlen=MAX_MARKS)

    # On the training thread.

    def run(self) -> None:
        """A step has ended. Raises only what the job's own signal handlers raised."""
        if self.is_dropped:
            return
        ended = self._step.number - 1
        try:
            self._marks.append((ended, monotonic(), collectives_so_far()))
        except Exception as error:
            if self._on_error("eval", error):
                self.is_dropped = True
                raise
        if self._is_due(ended):
            self._evaluation.run()
        elif not self.is_dropped:
            self._queue.submit(self)

    def _is_due(self, ended: int) -> bool:
        attempt = self._attempt
        if attempt is None or ended < attempt.step:
            return False
        # LATE as well if it is later than agreed, which only a job that changes its count of steps can bring about.
        return attempt.may.decide(LATE) == GO and attempt.does.decide(RUN if ended == attempt.step else REVOKED) == RUN

    # On threads of requests.

    @property
    def has_go(self) -> bool:
        """Whether it runs, whoever leaves meanwhile."""
        attempt = self._attempt
        return attempt is not None and attempt.may.made == GO and attempt.does.made != REVOKED

    def withdraw(self, job: object = None) -> bool:
        """Drop it. False when it runs, or has to: unless nobody ends steps for us any more."""
        self._leaving = True  # first: an attempt that begins from now on gets no `go`
        attempt = self._attempt
        told = attempt is not None and attempt.may.decide(LATE) == GO
        if attempt is not None and told and (not self._queue.closed or attempt.does.decide(REVOKED) == RUN):
            return False
        self.is_dropped = True
        self._queue.withdraw(self)
        return True

    def last_step(self) -> str:
        return self._queue.last_step()

    def answer(self, do: object, step: object) -> dict[str, object]:
        """Do what the agreement needs next; how this rank stands then, `ok` and `why` among it."""
        if do == "look":
            why = ""
        elif not isinstance(step, int):
            why = f"{step!r} is no step"
        elif do == "arm":
            why = self._arm(step)
        elif do == "go":
            why = self._go(step)
        elif do == "revoke":
            why = self._revoke(step)
        else:
            why = f"there is no {do!r}"
        return {"ok": not why, "why": why, **self._state(with_marks=do == "look")}

    def _arm(self, step: int) -> str:
        if self._leaving or self.has_go:
            return "it is let go of" if self._leaving else "it was told to go already"
        self._attempt = _Attempt(step)
        # In this order: if the step ends in between, the training thread has seen it and has found no `go`.
        ended = self._step.number - 1
        return f"step {step} has passed: step {ended} has ended" if ended >= step else ""

    def _go(self, step: int) -> str:
        attempt = self._attempt
        if attempt is None or attempt.step != step:
            return f"it is not armed for step {step}"
        if self._leaving or attempt.may.decide(GO) != GO:
            return f"step {step} had ended before"
        return ""

    def _revoke(self, step: int) -> str:
        attempt = self._attempt
        if attempt is None or attempt.step != step:
            return ""
        if attempt.may.decide(LATE) == GO and attempt.does.decide(REVOKED) == RUN:
            return f"it ran after step {step}"
        return ""

    def _state(self, with_marks: bool) -> dict[str, object]:
        now = monotonic()
        known = self._step.thread is not None
        state: dict[str, Any] = {
            "step": self._step.number - 1 if known else None,
            "last_step": self._queue.last_step(),
            "counted": self._step.is_counted,
            "started": bool(self._evaluation.started),
        }
        if with_marks:
            state["marks"] = [
                {"step": ended, "ago_s": round(now - at, 6), "collectives": so_far}
                for ended, at, so_far in list(self._marks)
            ]
        return state


def collectives_so_far() -> str | None:
    """How many collectives each group of all ranks was given so far: between the same two steps this is the same on
    all ranks. None without such groups. A µs a group."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    default = getattr(getattr(c10d, "_world", None), "default_pg", None)
    if default is None:
        return None
    size, numbers = default.size(), []
    for group in list(c10d._world.pg_names):
        if group.size() == size:
            try:
                numbers.append(group._get_sequence_number_for_group())
            except RuntimeError:
                continue  # a backend that does not count
    return ".".join(map(str, numbers)) or None
