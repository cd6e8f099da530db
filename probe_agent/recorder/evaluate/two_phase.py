"""Participant of the two-phase protocol: code held until a step that all ranks have agreed on.

The coordinator compiles the code on all ranks, names a step (`arm`) and, when all have confirmed, releases it (`go`). A
rank whose armed step ends before `go` runs nothing and is ready for a later step. `revoke` cancels `go` until the step
has ended. After `go` a rank ignores the loss of its client; before, it drops the code. The whole protocol and its
failure modes: probe_cli/cluster/two_phase/coordinator.py.

The training thread and the threads of requests decide without a lock: the first decision wins. While code is held, the
training thread pays about 20 µs per step; otherwise nothing.
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

#: Steps whose marks are kept, so that two ranks asked one after the other have some in common.
MAX_MARKS = 200
GO, LATE, RUN, REVOKED = "go", "late", "run", "revoked"


class _Once:
    """A decision that the first caller makes."""

    def __init__(self) -> None:
        self._made: dict[None, str] = {}

    def decide(self, what: str) -> str:
        """Return the decision of this call or an earlier one. One dict operation, which no other thread interrupts."""
        return self._made.setdefault(None, what)

    @property
    def made(self) -> str | None:
        return self._made.get(None)


class _Attempt:
    """A step proposed to the ranks: `may` becomes GO or LATE, then `does` becomes RUN or REVOKED."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.may = _Once()
        self.does = _Once()


class Ticket:
    """Held code: an entry of the step queue that returns after each step until it has run or is dropped."""

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
        #: The code will never run.
        self.is_dropped = False
        #: (step that ended, when, collectives so far), newest last.
        self._marks: deque[tuple[int, float, str | None]] = deque(maxlen=MAX_MARKS)

    # On the training thread.

    def run(self) -> None:
        """Run the code if the step that ended is due. Raises only what the job's own signal handlers raised."""
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
        # A step after the agreed one is LATE too: only a job that changes its step count can skip it.
        return attempt.may.decide(LATE) == GO and attempt.does.decide(RUN if ended == attempt.step else REVOKED) == RUN

    # On threads of requests.

    @property
    def has_go(self) -> bool:
        """Whether the code will run even if its client leaves."""
        attempt = self._attempt
        return attempt is not None and attempt.may.made == GO and attempt.does.made != REVOKED

    def withdraw(self, job: object = None) -> bool:
        """Drop the code. Return False if it runs or must run; after detach it no longer must."""
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
        """Make the move `do` and return this rank's state, with `ok` and `why`."""
        if do == "look":
            why = ""
        elif not isinstance(step, int):
            why = f"invalid step {step!r}"
        elif do == "arm":
            why = self._arm(step)
        elif do == "go":
            why = self._go(step)
        elif do == "revoke":
            why = self._revoke(step)
        else:
            why = f"unknown move {do!r}"
        return {"ok": not why, "why": why, **self._state(with_marks=do == "look")}

    def _arm(self, step: int) -> str:
        if self._leaving or self.has_go:
            return "it is being dropped" if self._leaving else "it has been released already"
        self._attempt = _Attempt(step)
        # In this order: if the step ends in between, the training thread has seen the attempt and found no `go`.
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
    """Return the number of collectives of each group of all ranks, which is the same on all ranks between the same two
    steps; None without such groups. Takes 1 µs per group."""
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
