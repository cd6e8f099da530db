"""One SQL statement a fact, put to each rank by itself, and what its rows become.

Everything is read from rings, but for `traits` and `recent`, which the recorder in the target puts together when it is
asked. A table travels as one row of lists, one a column: a fifth of the work of as many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe_cli.text import ranks_in

from .facts import Columns, Group, Memory, ModuleTime, Trait, are_late

__all__ = [
    "CALLS", "FACTS", "FEW_RANKS", "MOST_STEPS", "NUM_STEPS", "SPAN_S", "STEPS", "Extent", "Question", "num_steps_of",
]  # fmt: skip

#: Rows of all ranks together; and of one rank at least, and at most.
ALL_STEPS, MIN_STEPS, MAX_STEPS = 300_000, 50, 5_000
ALL_CALLS, MIN_CALLS, MAX_CALLS = 800_000, 400, 40_000
#: Steps that are compared where nobody says how many.
NUM_STEPS = 200
#: Of a few ranks with short steps, more: a busy host starves one of them for some seconds, and then another one.
FEW_RANKS, SPAN_S, MOST_STEPS = 16, 12.0, 1_000
#: Steps asked for beyond those that are compared: ranks are not at one point.
MORE_STEPS = 100
#: Modules with most time of their own; the others together are little.
MAX_MODULES = 500
#: Newest rows of process.samples, one a second.
MAX_SAMPLES = 600
#: Newest rows of python.gc.
MAX_PAUSES = 5_000
_NEWEST_SAMPLES = f"SELECT * FROM process.samples ORDER BY ts DESC LIMIT {MAX_SAMPLES}"
MEMORY = ("rss", "allocated", "reserved", "peak_allocated")

Row = Sequence[Any]  # one row as JSON has it


@dataclass(frozen=True)
class Extent:
    """How much is asked for: the newest `num_steps` of `num_ranks` that ended at least `ago_s` seconds ago."""

    num_steps: int
    num_ranks: int = 2
    #: A host that answers many questions may be busy with them, and its ranks wait for cores meanwhile.
    ago_s: float = 0.0

    @property
    def steps(self) -> int:
        """Rows of `python.steps` that one rank is asked for."""
        return min(MAX_STEPS, max(self.num_steps + MIN_STEPS, ALL_STEPS // max(1, self.num_ranks)))

    @property
    def calls(self) -> int:
        """Rows of `python.collectives` that one rank is asked for."""
        return min(MAX_CALLS, max(MIN_CALLS, ALL_CALLS // max(1, self.num_ranks)))


def num_steps_of(step_s: float | None, num_ranks: int) -> int:
    """Return how many steps to compare, of which one takes `step_s`."""
    if not step_s or num_ranks > FEW_RANKS:
        return NUM_STEPS
    return min(MOST_STEPS, max(NUM_STEPS, int(SPAN_S / step_s)))


@dataclass(frozen=True)
class Question:
    """`sql` is for so much; `read` makes the fact of its rows. With `is_wanted` it is put after the others, and only if
    what they have told wants it. `older` is put to recorders that have not all of its columns. With `is_live` the
    recorder has to answer, which that of a target that hangs may not."""

    sql: Callable[[Extent], str]
    read: Callable[[Sequence[Row]], Any]
    is_wanted: Callable[[Mapping[str, Any]], bool] | None = None
    older: Callable[[Extent], str] | None = None
    is_live: bool = False


def _time(expression: str) -> tuple[str, float]:
    """Seconds since 1970, on the wire as whole microseconds: JSON's numbers with a fraction take four times as long to
    read, which is seconds for a job of 2,048 ranks."""
    return f"epoch_us({expression})", 1e6


def _seconds(expression: str) -> tuple[str, float]:
    """A duration, on the wire as whole nanoseconds."""
    return f"TRY_CAST(round(1e9 * {expression}) AS BIGINT)", 1e9


#: Column -> SQL expression, and its NumPy type or what a whole number of it has to be divided by. The first column puts
#: the rows in order.
STEPS: dict[str, tuple[str, type | float]] = {
    "number": ("step", int),
    "ended": _time("ts"),
    "duration": _seconds("duration"),
    "data_wait": _seconds("data_wait"),
    "forward": _seconds("forward"),
    "backward": _seconds("backward"),
    "optimizer": _seconds("optimizer"),
    "evaluation": _seconds("evaluation"),
    "generation": _seconds("generation"),
    "other": _seconds("other"),
    "sampled": ("sampled", bool),
    "traced": ("traced", bool),
}
_OLDER_STEPS = {**STEPS, "traced": ("false", bool)}
CALLS: dict[str, tuple[str, type | float]] = {
    "start": _time("start"),
    "step": ("step", int),
    "group": ("coalesce(\"group\", '')", str),
    "seq": ("seq", int),
    "op": ("coalesce(op, '')", str),
    "peer": ("coalesce(peer, -1)", int),
    "bytes": ("coalesce(bytes, 0)", int),
    "ended": _time("ts"),
    "wait": _seconds("wait"),
    "phase": ("coalesce(phase, '')", str),
    "wait_phase": ("coalesce(wait_phase, phase, '')", str),
    # What a communication hook of DDP has launched, its reducer waits for, of which Python sees nothing.
    "by_cpp": ("seen_by != 'python' OR (state = 'launched' AND phase = 'backward' IS true)", bool),
    "on_device": ("state = 'enqueued'", bool),
    "is_open": ("state IN ('waiting', 'launched')", bool),
}
_OLDER_CALLS = {**CALLS, "peer": ("-1", int), "phase": ("''", str), "wait_phase": ("''", str)}
_RECENT = {
    **_OLDER_CALLS,
    "step": ("-1", int),
    "start": _time("ts"),
    "wait": ("NULL::DOUBLE", float),
    "by_cpp": ("true", bool),
    "on_device": ("state != 'completed' AND started IS NOT NULL", bool),
    "is_open": ("state NOT IN ('completed', 'failed')", bool),
}
_SAMPLES: dict[str, tuple[str, type | float]] = {
    "ts": _time("ts"),
    "period": ("period", float),
    "cpu": ("cpu", float),
    "cpu_training": ("cpu_training", float),
    "major_faults": ("major_faults", float),
    "page_faults": ("page_faults", float),
    "forced_switches": ("forced_switches", float),
    "run_delay": ("run_delay", float),
    "run_delay_others": ("run_delay_others", float),
    "cpus": ("coalesce(cpus, '')", str),
    "nice": ("nice", float),
}
_OLDER_SAMPLES = {
    **_SAMPLES,
    "run_delay": ("NULL::DOUBLE", float),
    "run_delay_others": ("NULL::DOUBLE", float),
    "cpus": ("''", str),
    "nice": ("NULL::DOUBLE", float),
}
#: Columns that mostly have one value in all rows.
_OFTEN_SAME = {
    *("data_wait", "evaluation", "generation", "traced"),
    *("op", "peer", "bytes", "phase", "wait_phase", "by_cpp", "on_device", "is_open"),
    *("cpus", "nice"),
}
_PAUSES: dict[str, tuple[str, type | float]] = {"ts": _time("ts"), "duration": _seconds("duration")}


def _lists(columns: Mapping[str, tuple[str, type | float]], rows: str) -> str:
    """One row of lists, one a column."""
    told = ", ".join(f'{expression} AS "{name}"' for name, (expression, _) in columns.items())
    asked = ", ".join(
        f'{_once(name) if name in _OFTEN_SAME else f"""list("{name}")"""} AS "{name}"' for name in columns
    )
    return f"SELECT {asked} FROM (SELECT {told} FROM ({rows})) HAVING count(*) > 0"


def _once(name: str) -> str:
    """A list that has the value of all rows once, where it is the same."""
    is_same = f'min("{name}") IS NOT DISTINCT FROM max("{name}") AND count("{name}") IN (0, count(*))'
    return f'CASE WHEN {is_same} THEN [min("{name}")] ELSE list("{name}") END'


def _reader(columns: Mapping[str, tuple[str, type | float]]) -> Callable[[Sequence[Row]], Columns]:
    def read(rows: Sequence[Row]) -> Columns:
        if not rows:
            return {}
        # What is NULL or the text "NaN" becomes NaN; anything else but a number is a ValueError.
        told: dict[str, np.ndarray] = {
            name: _array(values, kind) for (name, (_, kind)), values in zip(columns.items(), rows[0], strict=True)
        }
        by = np.argsort(next(iter(told.values())), kind="stable")
        if not all(values.shape in (by.shape, (1,)) for values in told.values()):
            raise ValueError("the columns are not of one length")
        return {
            name: values[by] if len(values) == len(by) else np.repeat(values, len(by)) for name, values in told.items()
        }

    return read


def _array(values: Sequence[Any], kind: type | float) -> np.ndarray:
    if isinstance(kind, float):
        return np.array(values, dtype=float) / kind
    if kind is not str:
        return np.array(values, dtype=kind)
    once = {text: text for text in values}  # a text that comes in every row is kept once
    return np.array([once[text] for text in values], dtype=object)


def _groups(rows: Sequence[Row]) -> dict[str, Group]:
    return {
        str(name): Group("" if desc in (None, "undefined") else str(desc), ranks_in(str(ranks)))
        for name, desc, ranks in rows
    }


def _modules(rows: Sequence[Row]) -> tuple[ModuleTime, ...]:
    return tuple(ModuleTime(*row) for row in rows)


def _memory(rows: Sequence[Row]) -> tuple[Memory, ...]:
    found = []
    for num_steps, *values in rows:
        for at, name in enumerate(MEMORY):
            median, first, last = values[3 * at : 3 * at + 3]
            if median is not None:
                found.append(Memory(name, median, first, last, num_steps))
    return tuple(found)


def _traits(rows: Sequence[Row]) -> tuple[Trait, ...]:
    return tuple(Trait(*row) for row in rows)


def _memory_columns() -> str:
    return ", ".join(f"median({name}), arg_min({name}, step), arg_max({name}, step)" for name in MEMORY)


def _newest_steps(extent: Extent) -> str:
    return f"SELECT * FROM python.steps WHERE {_is_new(extent, 'false')} ORDER BY step DESC LIMIT {extent.steps}"


#: A rank that does not train may have the steps of one that does, which are not as long as its own.
_OF_NO_STEP = (
    "NOT (SELECT coalesce(bool_or(coalesce(backward, 0) + coalesce(optimizer, 0) > 0), false) FROM python.steps)"
    " AND ts > (SELECT max(ts) - INTERVAL 1 MINUTE FROM python.collectives)"
)


def _newest_calls(extent: Extent) -> str:
    return (
        f"SELECT * FROM python.collectives WHERE state != 'failed' AND {_is_new(extent, _OF_NO_STEP)}"
        f" ORDER BY start DESC LIMIT {extent.calls}"
    )


def _is_new(extent: Extent, otherwise: str) -> str:
    """Rows of C++'s collectives come late: where there are any, their newest step counts. Others are new as well where
    `otherwise` holds."""
    newest = "(SELECT max(step) FROM python.steps)"
    before = ""
    if extent.ago_s:
        newest = f"(SELECT max(step) FROM python.steps WHERE epoch(ts) <= epoch(now()) - {extent.ago_s:.3f})"
        before = f" AND step <= {newest} IS NOT false"
    return (
        f"(step > least((SELECT max(step) FROM python.collectives WHERE seen_by != 'python'), {newest})"
        f" - {extent.num_steps + MORE_STEPS} IS NOT false OR {otherwise}){before}"
    )


#: By the field of `Facts` that it fills.
FACTS: dict[str, Question] = {
    "steps": Question(
        lambda extent: _lists(STEPS, _newest_steps(extent)),
        _reader(STEPS),
        older=lambda extent: _lists(_OLDER_STEPS, _newest_steps(extent)),
    ),
    "calls": Question(
        lambda extent: _lists(CALLS, _newest_calls(extent)),
        _reader(CALLS),
        older=lambda extent: _lists(_OLDER_CALLS, _newest_calls(extent)),
    ),
    "recent": Question(
        lambda extent: _lists(_RECENT, "SELECT * FROM torch.flight_recorder WHERE NOT is_p2p AND state != 'failed'"),
        _reader(_RECENT),
        are_late,
    ),
    "groups": Question(
        lambda extent: (
            'SELECT "group", arg_max(group_desc, ts), arg_max(ranks, ts) FROM python.groups GROUP BY ALL ORDER BY ALL'
        ),
        _groups,
        older=lambda extent: "SELECT 1 WHERE false",
    ),
    "modules": Question(
        lambda extent: (
            "SELECT module, stage, count(*), median(host), quantile_cont(host, 0.3), mad(host), median(device),"
            " quantile_cont(device, 0.3), mad(device) FROM (SELECT step, module, stage, sum(self_duration) AS host,"
            " sum(device_duration) AS device FROM python.torch_trace WHERE NOT recomputed"
            f" AND step > (SELECT max(step) - {extent.num_steps} FROM python.torch_trace) GROUP BY ALL)"
            f" GROUP BY ALL ORDER BY median(host) DESC LIMIT {MAX_MODULES}"
        ),
        _modules,
    ),
    "memory": Question(
        lambda extent: (
            f"SELECT count(*), {_memory_columns()} FROM"
            f" (SELECT * FROM python.steps ORDER BY step DESC LIMIT {extent.num_steps}) HAVING count(*) > 0"
        ),
        _memory,
    ),
    "traits": Question(lambda extent: "SELECT kind, name, value FROM process.env ORDER BY ALL", _traits, is_live=True),
    "samples": Question(
        lambda extent: _lists(_SAMPLES, _NEWEST_SAMPLES),
        _reader(_SAMPLES),
        older=lambda extent: _lists(_OLDER_SAMPLES, _NEWEST_SAMPLES),
    ),
    "pauses": Question(
        lambda extent: _lists(_PAUSES, f"SELECT * FROM python.gc ORDER BY ts DESC LIMIT {MAX_PAUSES}"),
        _reader(_PAUSES),
    ),
    "gpu_clock": Question(
        lambda extent: "SELECT median(sm_clock) FROM gpu.samples WHERE pid IS NOT NULL AND utilization > 0.1",
        lambda rows: float(rows[0][0]) if rows and rows[0][0] is not None else None,
    ),
}
