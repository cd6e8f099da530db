"""Expressions evaluated every few steps for `probe … watch-var`: rows of `python.variables`, streamed to the client.

The cost on the training thread is in `evaluate/watch.py` and in `probe.overhead`. A thread of the recorder wakes 20
times a second meanwhile; it ends with the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from time import gmtime, monotonic, strftime, time_ns
from types import CodeType
from typing import Any

from ..control.reply import Reply, json_number
from ..evaluate.watch import FILE, Seen, Watch
from ..ring.buffer import RowBuffer
from ..ring.table import NULL_FLOAT, Column, Table
from ..source import Recorder

__all__ = ["Variables", "stream"]

POLL_S = 0.05
MAX_EXPRESSIONS = 50
#: Rows that wait for a slow client; beyond this the oldest are dropped.
MAX_WAITING = 10_000
#: Distinct texts that the table keeps: its memory is bounded.
MAX_TEXTS = 500
#: The client gets a note after this long without a step.
SILENCE_S = 5.0


class Variables(Table):
    name = "python.variables"
    doc = "Values of the expressions of `probe … watch-var`, one row per expression and evaluation."
    capacity = 65_536
    filled_by = "probe … watch-var EXPRESSION"
    columns = (
        Column("step", "int", "", "number of the step that had just ended"),
        Column("ts", "time", "UTC", "time of the evaluation"),
        Column("expression", "text", "", "the expression as typed"),
        Column("value", "float", "", "its value if that is a number; true is 1"),
        Column("text", "text", "", f"any other value, truncated; NULL once the ring has {MAX_TEXTS} distinct texts"),
        Column("error", "text", "", "the exception it raised"),
    )


class _Rows:
    """Rows on their way from the training thread to the ring and the client."""

    def __init__(self, buffer: RowBuffer) -> None:
        self._buffer = buffer
        self._waiting: deque[list[object]] = deque(maxlen=MAX_WAITING)
        self._texts: set[str] = set()

    def add(self, seen: Seen) -> None:
        """Add a row; called on the training thread."""
        now = time_ns() // 1000
        number = self._buffer.number
        value = NULL_FLOAT if seen.value is None else seen.value
        text, error = self._bounded(seen.text), self._bounded(seen.error)
        self._buffer.rows.append((seen.step, now, number(seen.expression), value, number(text), number(error)))
        time = f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(now // 1_000_000))}.{now % 1_000_000:06}"
        self._waiting.append([seen.step, time, seen.expression, json_number(seen.value), seen.text, seen.error])

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


def stream(recorder: Recorder, request: Mapping[str, Any], reply: Reply) -> Mapping[str, object]:
    """Send rows and notes until the client leaves or the count is reached."""
    every, count = request.get("every"), request.get("count")
    if not isinstance(every, int) or every < 1 or not (count is None or (isinstance(count, int) and count > 0)):
        return _error(f"invalid every {every!r} or count {count!r}", "use whole numbers from 1")
    expressions = request.get("expressions")
    if not isinstance(expressions, list) or not 1 <= len(expressions) <= MAX_EXPRESSIONS:
        return _error("missing `expressions`, a list of texts", f"send 1 to {MAX_EXPRESSIONS} expressions")
    codes: dict[str, CodeType] = {}
    for text in map(str, expressions):
        try:
            codes[text] = compile(text.strip(), FILE, "eval", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return _error(f"invalid expression {text!r}: {error}", "run statements with: probe … eval --at-step")
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
            reply.send({"note": f"no step has ended; the last step was {queue.last_step()}"})
    return {"state": "finished"}


def _error(message: str, hint: str) -> Mapping[str, object]:
    return {"error": {"message": message, "hint": hint}}
