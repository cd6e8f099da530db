"""One SQL statement a fact, put to each rank by itself, and what its rows become.

Everything is read from rings, but for `traits`, which the recorder in the target puts together when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .facts import Call, Memory, ModuleTime, Step, Trait
from .recent import are_late

__all__ = ["FACTS", "Question"]

#: More rows of collectives than this are not asked of one rank: the newest count.
MAX_CALLS = 4_000
#: Steps asked for beyond those that are compared: ranks are not at one point.
MORE_STEPS = 800
#: Rows of C++'s collectives come late, so there may be many steps newer than the newest of them.
MAX_STEPS = 5_000
#: Their collectives, beyond the steps that are compared.
MORE_CALLS = 100
#: Modules with most time of their own; the others together are little.
MAX_MODULES = 500
MEMORY = ("rss", "allocated", "reserved", "peak_allocated")

Row = Sequence[Any]  # one row as JSON has it


@dataclass(frozen=True)
class Question:
    """`sql` is for so many steps; `read` makes the fact of its rows. It is put only when it `is_wanted`, judged by the
    facts before it."""

    sql: Callable[[int], str]
    read: Callable[[Sequence[Row]], tuple[Any, ...]]
    is_wanted: Callable[[Mapping[str, Sequence[Any]]], bool] = lambda told: True


def _steps(rows: Sequence[Row]) -> tuple[Step, ...]:
    return tuple(Step(*row) for row in rows)


def _calls(rows: Sequence[Row]) -> tuple[Call, ...]:
    # One that took long has a row from while it waited and another from when it was over: newest first.
    found: dict[tuple[str, int], Call] = {}
    for row in rows:
        call = Call(*row)
        found.setdefault(call.key, call)
    return tuple(found.values())


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


#: By the field of `Facts` that it fills.
FACTS: dict[str, Question] = {
    "steps": Question(
        lambda num: (
            "SELECT step, epoch(ts), duration, data_wait, forward, backward, optimizer,"
            " other + evaluation + generation, sampled"
            " FROM python.steps WHERE step > (SELECT max(step) FROM python.steps) - "
            f"{num + MORE_STEPS} OR step > (SELECT max(step) FROM python.collectives WHERE seq >= 0) - "
            f"{num + MORE_STEPS} ORDER BY step DESC LIMIT {MAX_STEPS}"
        ),
        _steps,
    ),
    "calls": Question(
        lambda num: (
            "SELECT step, \"group\", seq, op, epoch(start), wait, seen_by != 'python' FROM python.collectives"
            f" WHERE seq >= 0 AND state != 'failed' AND step > (SELECT max(step) FROM python.collectives"
            f" WHERE seq >= 0 AND seen_by != 'python') - {num + MORE_CALLS} IS NOT false"
            f" ORDER BY start DESC, ts DESC LIMIT {MAX_CALLS}"
        ),
        _calls,
    ),
    "recent": Question(
        lambda num: 'SELECT -1, "group", seq, op, epoch(ts), NULL, true FROM torch.flight_recorder WHERE NOT is_p2p',
        _calls,
        are_late,
    ),
    "modules": Question(
        lambda num: (
            "SELECT module, stage, count(*), median(host), quantile_cont(host, 0.3), mad(host), median(device),"
            " quantile_cont(device, 0.3), mad(device) FROM (SELECT step, module, stage, sum(self_duration) AS host,"
            " sum(device_duration) AS device FROM python.torch_trace WHERE NOT recomputed"
            f" AND step > (SELECT max(step) - {num} FROM python.torch_trace) GROUP BY ALL)"
            f" GROUP BY ALL ORDER BY median(host) DESC LIMIT {MAX_MODULES}"
        ),
        _modules,
    ),
    "memory": Question(
        lambda num: (
            f"SELECT count(*), {_memory_columns()} FROM"
            f" (SELECT * FROM python.steps ORDER BY step DESC LIMIT {num}) HAVING count(*) > 0"
        ),
        _memory,
    ),
    "traits": Question(lambda num: "SELECT kind, name, value FROM process.env ORDER BY ALL", _traits),
}
