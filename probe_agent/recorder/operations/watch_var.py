"""Evaluates expressions every so many steps, for `probe … watch-var`: rows of `python.variables`, sent as they come.

What it costs the training thread is said in `evaluate/watch.py`, and in `probe.overhead`. A thread of ours wakes 20
times a second meanwhile; it ends with the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import isfinite
from time import gmtime, monotonic, strftime, time_ns
from types import CodeType
from typing import Any

from ..control.reply import Reply
from ..evaluate.watch import FILE, Seen, Watch
from ..ring.buffer import RowBuffer
from ..ring.table import NULL_FLOAT, Column, Table
from ..source import Recorder

__all__ = ["Variables", "stream"]

POLL_S = 0.05
MAX_EXPRESSIONS = 50
#: Rows that wait for a client that reads slowly; then the oldest are not sent any more.
MAX_WAITING = 10_000
#: Different texts that the table keeps; its memory is bounded.
MAX_TEXTS = 500
#: After so long without a step the client is told.
SILENCE_S = 5.0


class Variables(Table):
    name = "python.variables"
    doc = "What the expressions of `probe … watch-var` were, one row an expression and look."
    capacity = 65_536
    filled_by = "probe … watch-var EXPRESSION"
    columns = (
        Column("step", "int", "", "the step that had just ended"),
        Column("ts", "time", "UTC", "when it was evaluated"),
        Column("expression", "text", "", "as it was typed"),
        Column("value", "float", "", "its value, where that is a number; true is 1"),
        Column("text", "text", "", f"its value otherwise, cut; NULL once the ring has {MAX_TEXTS} different ones"),
        Column("error", "text", "", "the exception that it raised"),
    )


class _Rows:
    """From the training thread into the ring, and to the client."""

    def __init__(self, buffer: RowBuffer) -> None:
        self._buffer = buffer
        self._waiting: deque[list[object]] = deque(maxlen=MAX_WAITING)
        self._texts: set[str] = set()

    def add(self, seen: Seen) -> None:
        """On the training thread."""
        now = time_ns() // 1000
        number = self._buffer.number
        value = NULL_FLOAT if seen.value is None else seen.value
        text, error = self._bounded(seen.text), self._bounded(seen.error)
        self._buffer.rows.append((seen.step, now, number(seen.expression), value, number(text), number(error)))
        shown = seen.value if seen.value is None or isfinite(seen.value) else _NOT_FINITE[str(seen.value)]
        time = f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(now // 1_000_000))}.{now % 1_000_000:06}"
        self._waiting.append([seen.step, time, seen.expression, shown, seen.text, seen.error])

    def _bounded(self, text: str | None) -> str | None:
        if text is not None and text not in self._texts:
            if len(self._texts) >= MAX_TEXTS:
                return None
            self._texts.add(text)
        return text

    def send(self, reply: Reply) -> None:
        rows = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if rows:
            reply.send({"rows": rows})


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def stream(recorder: Recorder, request: Mapping[str, Any], reply: Reply) -> Mapping[str, object]:
    """Send rows and remarks until the client goes, or it is over."""
    every, count = request.get("every"), request.get("count")
    if not isinstance(every, int) or every < 1 or not (count is None or (isinstance(count, int) and count > 0)):
        return _error(f"every {every!r} steps, {count!r} times: that cannot be", "both are numbers from 1")
    expressions = request.get("expressions")
    if not isinstance(expressions, list) or not 1 <= len(expressions) <= MAX_EXPRESSIONS:
        return _error("watch_var needs `expressions`, a list of texts", f"1 to {MAX_EXPRESSIONS}")
    codes: dict[str, CodeType] = {}
    for text in map(str, expressions):
        try:
            codes[text] = compile(text.strip(), FILE, "eval", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return _error(f"{text!r} is no expression: {error}", "statements can be run once: probe … eval --at-step")
    rows = _Rows(recorder.buffer(Variables))
    watch = Watch(recorder, codes, every, count, rows.add)
    recorder.at_step.submit(watch)
    try:
        return _follow(watch, rows, recorder, reply)
    finally:
        watch.cancel()


def _follow(watch: Watch, rows: _Rows, recorder: Recorder, reply: Reply) -> Mapping[str, object]:
    queue = recorder.at_step
    since, last = monotonic(), recorder.step.number
    ended = False
    while not ended:
        ended = watch.wait(POLL_S)
        while watch.notes:
            reply.send({"note": watch.notes.pop(0)})
        rows.send(reply)
        if reply.cancelled() or queue.closed:
            return {"state": "cancelled"}
        if recorder.step.number != last:
            since, last = monotonic(), recorder.step.number
        elif monotonic() - since > SILENCE_S:
            since = float("inf")
            reply.send({"note": f"no step ends; the last step was {queue.last_step()}"})
    return {"state": "finished"}


def _error(message: str, hint: str) -> Mapping[str, object]:
    return {"error": {"message": message, "hint": hint}}
