"""Parts of the job that it names itself: `with probe_agent.span("rollout"):` fills `python.spans`.

The job's `probe_agent` and this recorder may be different copies of the code, so they meet in an attribute of `sys`,
which exists while the recorder runs. Spans nest by context variable, so each thread and each asyncio task has its own.
On the training thread a span named rollout… or generat… is the phase `generation` of `python.steps`, and one named
eval… or validat… is `evaluation`.

Runs on the calling thread of the job: two clock reads and a list append, 4.5 µs a span (benchmarks.hooks).
"""

from __future__ import annotations

import sys
from _thread import RLock, get_ident, get_native_id
from contextvars import ContextVar
from time import perf_counter_ns, time_ns

from ..ring.table import Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource
from ..steps.step import EVAL, GENERATE

__all__ = ["REGISTRY", "Source", "Spans"]

#: Attribute of `sys` that `probe_agent.span` uses.
REGISTRY = "_probe_spans"
#: Beginnings of names, in lower case, that say which phase of the step a span is.
PHASES = {"rollout": GENERATE, "generat": GENERATE, "eval": EVAL, "validat": EVAL}
#: Texts are kept for ever, so their number is limited; later ones are NULL.
MAX_TEXTS, MAX_TEXT_LENGTH = 2_000, 200
ROWS_A_BATCH = 64


class Spans(Table):
    name = "python.spans"
    doc = "Parts of the job that it has named: one row per block of `with probe_agent.span(NAME)`, when it ends."
    capacity = 32_768
    columns = (
        Column("step", "int", "", "number of the step that ran when it began"),
        Column("ts", "time", "UTC", "when it began"),
        Column("name", "text", "", "its name; NULL behind the first 2,000 names"),
        Column("path", "text", "", "the names of the spans around it and its own, the outermost first: rollout/score"),
        Column("depth", "int", "", "number of spans around it"),
        Column("duration", "float", "s", "from its begin to its end"),
        Column("self_duration", "float", "s", "the same without the spans inside it on the same thread"),
        Column("tid", "int", "", "the kernel's number of the thread that began it"),
        Column("on_training_thread", "bool", "", "it is the thread that ends steps"),
        Column("error", "text", "", "class of the exception that left it; NULL if none did"),
    )


class _Open:
    """A span that has begun. The job's `probe_agent.span` holds it and calls `end`, which never raises into the job."""

    __slots__ = (
        "began",
        "covered",
        "inner_since",
        "name",
        "num_inner",
        "outer",
        "path",
        "phase",
        "source",
        "step",
        "thread",
    )

    def __init__(self, source: Source, name: str, outer: _Open | None) -> None:
        self.source: Source | None = source
        self.name = name
        self.outer = outer
        self.path: str = name if outer is None else f"{outer.path}/{name}"[:MAX_TEXT_LENGTH]
        self.thread = get_ident()
        self.step = source.recorder.step.number
        #: Time in which a span inside it was open on its thread, how many are open now, and since when.
        self.covered = self.num_inner = self.inner_since = 0
        #: Block of the step's phase that it is, if it is one.
        self.phase: object = None
        self.began = perf_counter_ns()

    def end(self, exception: type[BaseException] | None) -> None:
        source, self.source = self.source, None
        if source is not None:
            source.end(self, exception)


class Source(BaseSource):
    name = "spans"
    needs = ("torch",)
    tables = (Spans,)
    waits_for = Awaited(
        "the job has named no part of itself", 'wrap a part of its code: with probe_agent.span("rollout"): …'
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._step = recorder.step
        self._buffer = recorder.buffer(Spans)
        self._is_compiling = recorder.device.is_compiling
        self._innermost: ContextVar[_Open | None] = ContextVar("probe_span", default=None)
        self._numbers: dict[str, int] = {}
        self._lock = RLock()  # a signal handler of the job may name a part while the job does
        self._is_on = False

    def start(self) -> None:
        if not hasattr(sys, REGISTRY):
            setattr(sys, REGISTRY, self)
            self._is_on = True

    def stop(self) -> None:
        self._is_on = False
        if getattr(sys, REGISTRY, None) is self:
            delattr(sys, REGISTRY)

    # On a thread of the job.

    def begin(self, name: str) -> _Open | None:
        """Begin a span; called by the job's copy of `probe_agent`."""
        if self._is_compiling():  # part of a graph: it does not run when the graph does
            return None
        try:
            outer = self._innermost.get()
            while outer is not None and outer.source is None:  # it was left out of order, by a generator
                outer = outer.outer
            span = _Open(self, name[:MAX_TEXT_LENGTH], outer)
            if outer is not None and outer.thread == span.thread:
                if not outer.num_inner:
                    outer.inner_since = span.began
                outer.num_inner += 1
            self._innermost.set(span)
            kind = _phase(name)
            if kind and self._step.thread == span.thread:
                span.phase = self._step.enter_phase(kind)
            return span
        except Exception as error:
            if self.recorder.fail("probe_agent.span", error):
                raise
            return None

    def end(self, span: _Open, exception: type[BaseException] | None) -> None:
        """End a span and write its row."""
        now = perf_counter_ns()
        try:
            if span.phase is not None and self._step.thread == get_ident():
                self._step.leave_phase(span.phase)
            outer = span.outer
            if self._innermost.get() is span:
                self._innermost.set(outer)
            if outer is not None and outer.thread == span.thread:
                outer.num_inner -= 1
                if not outer.num_inner:
                    outer.covered += now - outer.inner_since
            if self._is_on:
                self._write(span, now, exception)
        except Exception as error:
            if self.recorder.fail("probe_agent.span", error):
                raise

    def _write(self, span: _Open, now: int, exception: type[BaseException] | None) -> None:
        took = now - span.began
        covered = span.covered + (now - span.inner_since if span.num_inner else 0)
        depth, outer = 0, span.outer
        while outer is not None:
            depth, outer = depth + 1, outer.outer
        row = (
            span.step,
            (time_ns() - took) // 1000,
            self._number(span.name),
            self._number(span.path),
            depth,
            took * 1e-9,
            (took - covered) * 1e-9,
            get_native_id(),
            span.thread == self._step.thread,
            0 if exception is None else self._number(exception.__name__),
        )
        rows = self._buffer.rows
        rows.append(row)
        if len(rows) >= ROWS_A_BATCH:
            self._buffer.flush()

    def _number(self, text: str) -> int:
        number = self._numbers.get(text)
        if number is None:
            with self._lock:
                if len(self._numbers) >= MAX_TEXTS:
                    return 0
                number = self._numbers[text] = self._buffer.number(text)
        return number


def _phase(name: str) -> str:
    """Return the phase of the step that a span of this name is; empty if it is none."""
    return next((phase for beginning, phase in PHASES.items() if name[: len(beginning)].lower() == beginning), "")
