"""Operations `eval`, `hold`, `ticket` and `complete`: they start code, stream its output and stop it in time.

Runs on the thread of the request, which wakes 20 times a second while code runs; the code runs on its own thread or on
the training thread.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Mapping
from time import monotonic, perf_counter_ns
from typing import Any

from ..control.reply import Gone, Reply
from ..guest import own_threads
from ..guest.walk import frames_of
from ..names import frames
from ..names.lookup import Lookup
from ..steps.queue import StepQueue
from ..steps.step import Step
from . import complete, show
from .capture import Capture
from .run import Evaluation
from .session import Namespace
from .two_phase import Ticket

__all__ = ["Evaluator"]

POLL_S = 0.05
#: Time that at-step code without a timeout waits for a step.
STEP_TIMEOUT_S = 30.0
#: What code names that reads gradients, or clears them. On another thread one may be freed while it is read, here or by
#: backward and the optimizer, which ends the process (steps/gradient_reader.py).
OF_GRADIENTS = {"grad", "zero_grad", "backward", "clip_grad_norm_", "clip_grad_value_", "get_total_norm"}
WAITS_FOR_STEP = "this code uses gradients: it runs on the training thread when the step has ended"
RESEND_S = 0.05
#: Code that has not stopped by then is reported as still running.
GIVE_UP_S = 0.8
MAX_SESSIONS = 100
#: Evaluations that may be held at once, and the longest time that each is held.
MAX_TICKETS = 16
HOLD_S = 3600.0


class Evaluator:
    """Evaluations in this target. `training_ident` returns the training thread, None while unknown; `step` is the
    running step, where steps are counted."""

    def __init__(
        self,
        step_queue: StepQueue,
        training_ident: Callable[[], int | None],
        on_error: Callable[[str, BaseException], object],
        step: Step | None = None,
    ) -> None:
        self._queue = step_queue
        self._step = step
        self._tickets: dict[str, Ticket] = {}
        self._training_ident = training_ident
        self._on_error = on_error
        self._capture = Capture()
        self._sessions: dict[str, Namespace] = {}
        self._pid = os.getpid()

    def eval(self, request: Mapping[str, Any], reply: Reply) -> dict[str, object]:
        """Run `code` and stream its output."""
        code, timeout, refusal = _parsed(request)
        if refusal is not None:
            return refusal
        waits = not request.get("at_step") and self._is_stepping() and _uses_gradients(code)
        at_step = waits or bool(request.get("at_step"))
        evaluation, lookup = self._evaluation(code, request.get("session"), at_step)
        if waits:
            evaluation.notes.append(WAITS_FOR_STEP)
        try:
            if at_step:
                self._queue.submit(evaluation)
            else:
                own_threads.start(evaluation.run)
        except RuntimeError as error:
            evaluation.withdraw()
            return {"error": {"message": f"the target cannot start a thread: {error}", "hint": "use --at-step"}}
        try:
            return _Watch(evaluation, lookup, reply, self._queue if at_step else None, timeout).to_the_end()
        finally:
            evaluation.sink.discard = True

    def ticket(self, request: Mapping[str, Any], reply: Reply) -> dict[str, object]:
        """Make the next move of the two-phase protocol for held code; see `Ticket`."""
        ticket = self._tickets.get(str(request.get("ticket")))
        if ticket is None:
            told = "no code is held under this name: it has run or was dropped"
            return {"error": {"message": told, "hint": "send the code again"}}
        return ticket.answer(request.get("do"), request.get("step"))

    def hold(self, request: Mapping[str, Any], reply: Reply) -> dict[str, object]:
        """Compile `code` and hold it under its `ticket` until it has run after the agreed step, or the client leaves
        before `go`; stream its output."""
        code, timeout, refusal = _parsed(request)
        if refusal is not None:
            return refusal
        name = str(request.get("ticket"))
        if self._step is None:
            return {"error": {"message": "this target counts no steps", "hint": "run the code without --at-step"}}
        if name in self._tickets or len(self._tickets) >= MAX_TICKETS:
            told = f"{len(self._tickets)} evaluations are already waiting for their step"
            return {"error": {"message": told, "hint": "try again later"}}
        evaluation, lookup = self._evaluation(code, None, at_step=True)
        if not evaluation.prepare():
            evaluation.withdraw()
            return {"state": "failed", "traceback": evaluation.traceback}
        ticket = Ticket(evaluation, self._step, self._queue, self._on_error)
        self._tickets[name] = ticket
        self._queue.submit(ticket)
        try:
            return _Holding(evaluation, lookup, reply, ticket, self._queue, timeout).to_the_end()
        finally:
            ticket.withdraw()
            self._tickets.pop(name, None)  # not there any more when the recorder leaves
            evaluation.sink.discard = True

    def complete(self, request: Mapping[str, Any], reply: Reply) -> dict[str, object]:
        """Return completions of `text`."""
        namespace = self._sessions.get(str(request.get("session"))) or Namespace()
        lookup = Lookup(self._training_ident, Evaluation.run.__code__, namespace.told)
        try:
            return {"matches": complete.matches(str(request.get("text", "")), namespace, lookup)}
        finally:
            lookup.finish()

    def close(self) -> None:
        """Drop all sessions, on detach and in a forked child.

        On detach, evaluations were cancelled with their connections and clean up themselves; in a child this does.
        """
        for namespace in self._sessions.values():
            for file in namespace.files:
                show.forget_source(file)
        self._sessions.clear()
        self._tickets.clear()
        if os.getpid() != self._pid:
            self._queue.pending.clear()
            self._capture.in_child()

    def _is_stepping(self) -> bool:
        step = self._step
        return step is not None and step.thread is not None and perf_counter_ns() - step.started < STEP_TIMEOUT_S * 1e9

    def _evaluation(self, code: str, session: object, at_step: bool) -> tuple[Evaluation, Lookup]:
        """Return a new evaluation, whose output is captured, and its lookup of names."""
        namespace = self._namespace(session)
        lookup = Lookup(self._training_ident, Evaluation.run.__code__, namespace.told)
        namespace.scope.lookup = lookup
        evaluation = Evaluation(code, namespace, self._capture, self._on_error, keep=bool(session), at_step=at_step)
        self._capture.begin()
        return evaluation, lookup

    def _namespace(self, session: object) -> Namespace:
        if not session:
            return Namespace()
        name = str(session)
        if name not in self._sessions and len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]  # the oldest
        return self._sessions.setdefault(name, Namespace())


def _parsed(request: Mapping[str, Any]) -> tuple[str, float | None, dict[str, object] | None]:
    """Return code, timeout, and the error of an invalid request."""
    code, timeout = request.get("code"), request.get("timeout")
    refusal: dict[str, object] | None = None
    if not isinstance(code, str):
        code, refusal = "", {"error": {"message": "missing `code`", "hint": "send `code` as a text"}}
    elif not (timeout is None or (isinstance(timeout, (int, float)) and timeout > 0)):
        refusal = {"error": {"message": f"invalid timeout {timeout!r}", "hint": "use a number of seconds above 0"}}
    return code, timeout, refusal


def _uses_gradients(code: str) -> bool:
    """Return whether code names gradients, or a function that clears or reads them, as far as it can be seen without
    running it."""
    try:
        nodes = ast.walk(ast.parse(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # it will be said when the code is compiled
    return any(
        {getattr(node, "attr", None), getattr(node, "id", None), getattr(node, "value", None)} & OF_GRADIENTS
        for node in nodes
        if isinstance(node, (ast.Attribute, ast.Name, ast.Constant))
    )


class _Watch:
    """One evaluation under supervision, until it ends or is given up."""

    def __init__(
        self,
        evaluation: Evaluation,
        lookup: Lookup,
        reply: Reply,
        queue: StepQueue | Ticket | None,
        timeout_s: float | None,
    ) -> None:
        self._evaluation = evaluation
        self._lookup = lookup
        self._reply = reply
        self._queue = queue
        self._timeout_s = timeout_s
        self._asked = monotonic()
        self._last_send = 0.0
        self._helpless = False

    def to_the_end(self) -> dict[str, object]:
        """Wait for the end, streaming output, and return the last line of the answer."""
        reason, since = None, 0.0
        while not self._evaluation.wait(POLL_S):
            self._forward()
            now = monotonic()
            if reason is None:
                reason, since = self._reason(now), now
                if reason is not None and self._queue is not None and self._queue.withdraw(self._evaluation):
                    return self._withdrawn(reason, now - self._asked)
            if reason is not None:
                if now - since > GIVE_UP_S:
                    return self._given_up(reason)
                self._stop(now)
        self._forward()
        evaluation = self._evaluation
        return self._answer(evaluation.state or reason or "cancelled")

    def _answer(self, state: str) -> dict[str, object]:
        lost = self._evaluation.sink.num_lost_chars
        if lost:
            self._note(f"{lost:,} characters of output were lost: the client read too slowly")
        return {"state": state, "result": self._evaluation.result, "traceback": self._evaluation.traceback}

    def _reason(self, now: float) -> str | None:
        """Return why the evaluation must end now, None if it need not."""
        if self._reply.cancelled():
            return "cancelled"
        started = self._evaluation.started
        limit = self._timeout_s if started or self._queue is None else self._timeout_s or STEP_TIMEOUT_S
        return "timed out" if limit is not None and now - (started or self._asked) >= limit else None

    def _stop(self, now: float) -> None:
        if now - self._last_send >= RESEND_S:
            self._last_send = now
            if not self._evaluation.fence.send() and not self._helpless:
                self._helpless = True
                self._note("the target's Python has no ctypes, so running code cannot be stopped")

    def _withdrawn(self, reason: str, waited_s: float) -> dict[str, object]:
        self._evaluation.withdraw()
        last = self._queue.last_step() if self._queue is not None else ""
        self._note(f"no step ended within {round(waited_s, 1):g} s; the last step was {last}; the code did not run")
        return self._answer(reason)

    def _given_up(self, reason: str) -> dict[str, object]:
        frame = next(iter(frames_of(self._evaluation.ident)), None)
        place = "an unknown place" if frame is None else frames.where(frame)
        del frame
        thread = "the training thread" if self._queue is not None else "its thread"
        self._note(f"still running on {thread}, in {place}: it is in a call outside Python or catches the exception")
        return self._answer(reason)

    def _forward(self) -> None:
        output = self._evaluation.sink.take()
        for notes in (self._lookup.notes, self._evaluation.notes):
            while notes:
                self._note(notes.pop(0))
        for stream, text in output:
            self._send({"stream": stream, "text": text})

    def _note(self, note: str) -> None:
        self._send({"note": note})

    def _send(self, line: dict[str, object]) -> None:
        try:
            self._reply.send(line)
        except Gone:
            self._evaluation.sink.discard = True  # `cancelled()` is now true


class _Holding(_Watch):
    """Held code under supervision: before `go` only its client ends it, after `go` only a timeout."""

    def __init__(
        self,
        evaluation: Evaluation,
        lookup: Lookup,
        reply: Reply,
        ticket: Ticket,
        queue: StepQueue,
        timeout_s: float | None,
    ) -> None:
        super().__init__(evaluation, lookup, reply, None, timeout_s)
        self._queue = ticket
        self._ticket = ticket
        self._steps = queue
        self._send({"held": True})

    def _reason(self, now: float) -> str | None:
        started = self._evaluation.started
        if started and self._timeout_s is not None and now - started >= self._timeout_s:
            return "timed out"
        if self._ticket.has_go:
            return "cancelled" if self._steps.closed else None
        if self._reply.cancelled() or self._ticket.is_dropped:
            return "cancelled"
        return "timed out" if now - self._asked >= HOLD_S else None

    def _withdrawn(self, reason: str, waited_s: float) -> dict[str, object]:
        self._evaluation.withdraw()
        self._note(f"the code did not run: {'it was never released' if reason == 'timed out' else 'it was dropped'}")
        return self._answer(reason)
