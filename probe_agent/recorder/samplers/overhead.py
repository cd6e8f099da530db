"""Cost of each of the recorder's sources, measured in the running job: `probe.overhead`.

Runs on the recorder's thread every 10 s, the first time after 2 s. The hooks time themselves; torch's cost of calling
them does not show on their clocks, so sampled steps are also compared with unsampled ones (steps/governor.py).
"""

from __future__ import annotations

from time import monotonic, thread_time, time_ns

from ..ring.table import NULL_FLOAT, Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource

__all__ = ["Overhead", "Source"]

INTERVAL_S = 10.0
#: The first verdict comes early, so that excessive sampling ends soon.
FIRST_S = 2.0
#: The source whose cost is part of the comparison with unsampled steps.
SAMPLING = "torch_trace"


class Overhead(Table):
    name = "probe.overhead"
    doc = "Cost of each source of rows to the target, measured by the source itself; one row per source every 10 s."
    capacity = 8_192
    columns = (
        Column("ts", "time", "UTC", "end of the period"),
        Column("source", "text", "", "source of rows, `our thread` (the recorder's) or `sampled steps` (all sampling)"),
        Column("every", "int", "steps", "one step in this many is sampled: trace.every, or more to keep trace.budget"),
        Column("thread", "text", "", "training, or probe (the recorder's own, which shares the GIL)"),
        Column("calls", "int", "", "number of calls in the period"),
        Column("seconds", "float", "s", "time it took in the period; for sampled steps, their extra time"),
        Column("per_call", "float", "s", "seconds divided by calls"),
        Column("share", "float", "", "seconds divided by the length of the period: 0.01 is 1 %"),
        Column(
            "uncertainty",
            "float",
            "s",
            "uncertainty of per_call: half the interquartile range divided by the root of n; NULL if measured exactly",
        ),
    )


class Source(BaseSource):
    name = "overhead"
    tables = (Overhead,)
    waits_for = Awaited(f"its first row comes {FIRST_S:g} s after the recorder has started", "query it again")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._buffer = recorder.buffer(Overhead)
        self._last: dict[str, tuple[int, int]] = {}
        self._since = monotonic()
        self._thread_s = thread_time()
        self._ticks = 0
        self._num_sampled = 0
        self._interval = FIRST_S

    def tick(self) -> None:
        self._ticks += 1
        now = monotonic()
        period = now - self._since
        if period < self._interval:
            return
        self._interval = INTERVAL_S
        module_calls, others = 0, 0.0
        for name, cost in self.recorder.costs.items():
            calls, ns = self._last.get(name, (0, 0))
            self._last[name] = (cost.calls, cost.ns)
            calls, seconds = cost.calls - calls, (cost.ns - ns) * 1e-9
            self._row(name, "training", calls, seconds, period)
            if name == SAMPLING:
                module_calls = calls
            else:
                others += seconds
        self._row("our thread", "probe", self._ticks, thread_time() - self._thread_s, period)
        self._compare(module_calls, others / period, period)
        self._since, self._thread_s, self._ticks = now, thread_time(), 0

    def _compare(self, module_calls: int, others: float, period: float) -> None:
        """Compare sampled with unsampled steps: the whole cost of sampling, torch's cost of calling hooks included."""
        governor = self.recorder.governor
        num_sampled, self._num_sampled = governor.num_sampled - self._num_sampled, governor.num_sampled
        verdict = governor.review(module_calls / num_sampled if num_sampled else 0.0, others)
        if verdict is not None:
            self._row(
                "sampled steps", "training", num_sampled, verdict.extra * num_sampled, period, verdict.uncertainty
            )

    def _row(
        self, source: str, thread: str, calls: int, seconds: float, period: float, spread: float | None = None
    ) -> None:
        number = self._buffer.number
        self._buffer.rows.append(
            (
                time_ns() // 1000,
                number(source),
                self.recorder.governor.every,
                number(thread),
                calls,
                seconds,
                seconds / calls if calls else NULL_FLOAT,
                seconds / period,
                NULL_FLOAT if spread is None else spread,
            )
        )
