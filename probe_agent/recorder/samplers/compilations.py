"""Compilations, recompilations and graph breaks of torch.compile: `torch.compile`.

Runs on the recorder's thread every flush.interval and only reads Dynamo's own records: the metrics of its last 64
compilations and its list of graph breaks. It switches no logging on. While nothing compiles it costs two comparisons.
"""

from __future__ import annotations

import sys
from time import time
from typing import Any

from ..ring.table import NULL_FLOAT, Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource

__all__ = ["Compilations", "Source"]

MAX_REASON = 400
#: A graph break waits this long for its compilation to end; then it gets a row without one.
WAIT_S = 60.0


class Compilations(Table):
    name = "torch.compile"
    doc = "One row per compilation and graph break of Dynamo, including up to 64 from before the attach."
    capacity = 8_192
    columns = (
        Column("step", "int", "", "number of the running step when it was recorded; -1 before the first"),
        Column("ts", "time", "UTC", "end of the compilation"),
        Column("event", "text", "", "compile, recompile, backward (compiled lazily), graph_break or failure"),
        Column("compile_id", "text", "", "Dynamo's id: number of the function / number of its compilation"),
        Column("function", "text", "", "function that was compiled, or that contains the graph break"),
        Column("file", "text", "", "source file of the function"),
        Column("lineno", "int", "", "first line of the function, or line of the graph break; 0 if unknown"),
        Column("reason", "text", "", "reason of the recompilation, graph break or failure"),
        Column("duration", "float", "s", "time that the job was blocked by it; NULL for a graph break"),
        Column("num_ops", "int", "", "operations in the graph"),
        Column("num_guards", "int", "", "guards: conditions for reusing the compiled code"),
    )


class Source(BaseSource):
    name = "compilations"
    needs = ("torch", "torch._dynamo.utils")
    tables = (Compilations,)
    waits_for = Awaited("Dynamo has compiled nothing in this process", "wait until the job compiles something")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._buffer = recorder.buffer(Compilations)
        self._utils: Any = sys.modules["torch._dynamo.utils"]
        self._last: Any = None
        self._num_breaks = 0
        self._last_break: Any = None
        #: Graph breaks without a compilation, with the time at which each was seen.
        self._breaks: list[tuple[float, Any]] = []
        #: Function, file and line by the first half of a compile id; some compilations omit them.
        self._functions: dict[str, tuple[str | None, str | None, int]] = {}

    def start(self) -> None:
        self.tick()

    def tick(self) -> None:
        """Write rows for everything that Dynamo has recorded since the last tick."""
        metrics = self._utils.get_compilation_metrics()
        reasons = list(getattr(self._utils, "graph_break_reasons", ()))
        noted = reasons[self._num_breaks - 1 : self._num_breaks] if self._num_breaks else []
        if not any(told is self._last_break for told in noted):
            self._num_breaks = 0  # torch._dynamo.reset() has emptied it
        if len(reasons) > self._num_breaks:
            now = time()
            self._breaks += [(now, told) for told in reasons[self._num_breaks :]]
            self._num_breaks, self._last_break = len(reasons), reasons[-1]
        if metrics and metrics[-1] is not self._last:
            at = next((at for at in range(len(metrics) - 1, -1, -1) if metrics[at] is self._last), -1)
            self._last = metrics[-1]
            for compilation in metrics[at + 1 :]:
                self._write(compilation)
        while self._breaks and time() - self._breaks[0][0] > WAIT_S:
            self._write_break(*self._breaks.pop(0), None)

    def _write(self, compilation: Any) -> None:
        """Write the row of one compilation and those of its graph breaks."""
        compile_id = str(_of(compilation, "compile_id") or "")
        frame, _, number = compile_id.rpartition("/")
        name = _of(compilation, "co_name")
        place: tuple[str | None, str | None, int]
        if name is not None:
            place = (str(name), _of(compilation, "co_filename"), int(_of(compilation, "co_firstlineno") or 0))
            self._functions[frame] = place
        else:
            place = self._functions.get(frame, (None, None, 0))
        failure = _of(compilation, "fail_type")
        again = _of(compilation, "recompile_reason")
        if failure is not None:
            event, reason = "failure", f"{failure}: {_of(compilation, 'fail_reason')}"
        elif name is None:
            event, reason = "backward", None
        elif again is not None or number.split("_")[0] not in ("", "0"):
            event, reason = "recompile", again
        else:
            event, reason = "compile", None
        duration = _of(compilation, "duration_us")
        seconds = _of(compilation, "entire_frame_compile_time_s") if duration is None else duration * 1e-6
        ended = (_of(compilation, "start_time") or time()) + (seconds or 0.0)
        if name is not None:
            # Dynamo stops at the first break of a function and compiles the rest as another function.
            at = next((at for at, (_, told) in enumerate(self._breaks) if _is_of(told, place)), None)
            if at is not None and _of(compilation, "restart_reasons") != set():
                self._write_break(ended, self._breaks.pop(at)[1], compile_id)
        self._row(
            ended,
            event,
            compile_id,
            place,
            reason,
            seconds,
            _of(compilation, "graph_op_count"),
            _of(compilation, "guard_count"),
        )

    def _write_break(self, ts: float, told: Any, compile_id: str | None) -> None:
        inner = told.user_stack[-1] if told.user_stack else None
        place = (None, None, 0) if inner is None else (inner.name, inner.filename, inner.lineno or 0)
        self._row(ts, "graph_break", compile_id, place, told.reason, None, None, None)

    def _row(
        self,
        ts: float,
        event: str,
        compile_id: str | None,
        place: tuple[str | None, str | None, int],
        reason: str | None,
        duration: float | None,
        num_ops: int | None,
        num_guards: int | None,
    ) -> None:
        number = self._buffer.number
        function, file, lineno = place
        self._buffer.rows.append(
            (
                self.recorder.step.number,
                round(ts * 1e6),
                number(event),
                number(compile_id or None),
                number(function),
                number(file),
                lineno,
                number(None if reason is None else _short(str(reason))),
                NULL_FLOAT if duration is None else float(duration),
                int(num_ops or 0),
                int(num_guards or 0),
            )
        )


def _of(compilation: Any, name: str) -> Any:
    """Return a value of a compilation's metrics, None if this torch version has no such metric."""
    return getattr(compilation, name, None)


def _is_of(told: Any, place: tuple[str | None, str | None, int]) -> bool:
    """Return whether the outermost function of a break is the compiled one."""
    outer = told.user_stack[0] if told.user_stack else None
    return outer is not None and (outer.name, outer.filename) == place[:2]


def _short(reason: str) -> str:
    """Return event and reason on one line, without the hints and links that Dynamo adds."""
    kept = []
    for line in reason.splitlines():
        text = line.strip()
        if text.startswith(("Hint:", "Developer debug context:", "For more details")):
            break
        if text:
            kept.append(text.replace("Explanation: ", ""))
    return " ".join(kept)[:MAX_REASON]
