"""Tables and steps that the job records itself.

`probe_agent.record("episodes", reward=1.5)` fills the table `job.episodes`, and `probe_agent.step()` ends a step. The
job's `probe_agent` and this recorder may be different copies of the code, so they meet in an attribute of `sys`, which
exists while the recorder runs. An invalid call becomes a row of `probe.errors`.

Runs on the calling thread of the job: a lock, a check of each value and a list append, 1.7 µs for a row of one column
and 0.13 µs for each further one (benchmarks.hooks).
"""

from __future__ import annotations

import re
import sys
from _thread import RLock
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from time import perf_counter_ns, time_ns
from typing import Any

from ..ring.buffer import RowBuffer
from ..ring.table import COORDINATES, NULL_FLOAT, Column, Table, row_struct
from ..source import Recorder
from ..source import Source as BaseSource
from ..torch import loaded

__all__ = ["REGISTRY", "Source"]

#: Attribute of `sys` that the functions of `probe_agent` use.
REGISTRY = "_probe_calls"
SCHEMA = "job"
MAX_TABLES, MAX_COLUMNS = 16, 64
#: Limits of a table: size of its rows in the ring, and number of rows.
RING_BYTES, MAX_ROWS = 2 << 20, 16_384
#: Texts are kept for ever, so their number is limited; later ones are NULL.
MAX_TEXTS, MAX_TEXT_LENGTH = 2_000, 500
ROWS_A_BATCH = 64

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_STEP = Column("step", "int", "", "number of the running step, or the one given in the call")
_TS = Column("ts", "time", "UTC", "time of the call")
_TAKEN = frozenset(column.name for column in (*COORDINATES, _TS))


class _JobTable:
    """One table of the job, with the columns of the first call."""

    def __init__(self, name: str, values: Mapping[str, object], buffer_of: Callable[[type[Table]], RowBuffer]) -> None:
        if not values or len(values) > MAX_COLUMNS:
            raise ValueError(f"{len(values)} columns; use 1 to {MAX_COLUMNS}")
        for column in values:
            if _NAME.fullmatch(column) is None or column in _TAKEN:
                raise ValueError(f"invalid column name {column!r}; use letters, digits and _, and no built-in column")
        self.kinds = {column: _kind(column, value) for column, value in values.items()}
        columns = [_STEP, _TS, *(Column(column, kind, "", "") for column, kind in self.kinds.items())]
        capacity = min(MAX_ROWS, RING_BYTES // row_struct(columns).size)
        declared = {"name": f"{SCHEMA}.{name}", "doc": "Recorded by the job itself.", "columns": tuple(columns)}
        self._buffer = buffer_of(type(name, (Table,), {**declared, "capacity": capacity}))
        self._texts: set[str] = set()

    def add(self, step: int, values: Mapping[str, object]) -> None:
        if values.keys() - self.kinds.keys():
            more = ", ".join(sorted(values.keys() - self.kinds.keys()))
            raise ValueError(f"unknown columns: {more}; use the columns of the first call")
        row: list[object] = [step, time_ns() // 1000]
        for column, kind in self.kinds.items():
            value = values.get(column)
            if kind == "float" and value.__class__ is float:
                row.append(value)
            else:
                row.append(self._encoded(column, kind, value))
        buffer = self._buffer
        buffer.rows.append(tuple(row))
        if len(buffer.rows) >= ROWS_A_BATCH:
            buffer.flush()

    def _encoded(self, column: str, kind: str, value: Any) -> object:
        if value is None and kind in ("float", "text"):
            return NULL_FLOAT if kind == "float" else 0
        if kind == "float" and isinstance(value, Real):
            return float(value)
        if kind == "bool" and _kind(column, value) == "bool":
            return bool(value)
        if kind == "int" and isinstance(value, Integral) and -(1 << 63) <= int(value) < 1 << 63:
            return int(value)
        if kind == "text" and isinstance(value, str):
            return self._buffer.number(self._text(value))
        raise TypeError(f"{column}={_shown(value)}: the column is {_KINDS[kind]} since the first call")

    def _text(self, value: str) -> str | None:
        text = str(value)[:MAX_TEXT_LENGTH]
        if text not in self._texts:
            if len(self._texts) >= MAX_TEXTS:
                return None
            self._texts.add(text)
        return text


_KINDS = {"float": "a number", "int": "a whole number of 64 bits", "bool": "True or False", "text": "text"}


def _kind(column: str, value: object) -> str:
    """Return the column kind of `value`. Raises TypeError, also for a tensor, since reading one may wait."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):  # NumPy's
        return "bool"
    if isinstance(value, str):
        return "text"
    if isinstance(value, Integral):
        return "int"
    if isinstance(value, Real):
        return "float"
    raise TypeError(f"{column}={_shown(value)}: use a number, True, False or text; for a tensor its .item()")


def _shown(value: object) -> str:
    """Return a value as text for a message, without running the job's code."""
    kind = type(value)
    return repr(value)[:60] if value is None or kind in (bool, int, float, str) else kind.__name__


class Source(BaseSource):
    name = "user_tables"

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._lock = RLock()  # a signal handler of the job may record while the job does
        self._tables: dict[object, _JobTable] = {}

    def start(self) -> None:
        if not hasattr(sys, REGISTRY):
            setattr(sys, REGISTRY, self)

    def stop(self) -> None:
        if getattr(sys, REGISTRY, None) is self:
            delattr(sys, REGISTRY)

    # Called by the functions of the job's copy of `probe_agent`.

    def record(self, table: object, values: dict[str, object]) -> None:
        """Add a row to the job's table."""
        try:
            with self._lock:
                self._record(table, values)
        except Exception as error:
            if error.__class__ in (TypeError, ValueError):
                job = sys._getframe(2)
                place = f"record({_shown(table)}) at {job.f_code.co_filename}:{job.f_lineno}"
                error = type(error)(f"{place}: {error}").with_traceback(error.__traceback__)
            if self.recorder.fail("probe_agent.record", error):
                raise

    def step(self) -> None:
        """End a step; after the first call nothing else does."""
        try:
            if loaded("torch") is None:
                raise RuntimeError("probe_agent.step() needs torch; import torch first")
            self.recorder.ends.end_by_hand(perf_counter_ns())
        except Exception as error:
            if self.recorder.fail("probe_agent.step", error):
                raise

    def _record(self, name: object, values: dict[str, object]) -> None:
        step = values.pop("step", None)
        if step is None:
            step = self.recorder.step.number
        elif isinstance(step, bool) or not isinstance(step, Integral):
            raise TypeError(f"step={_shown(step)}: use a whole number")
        table = self._tables.get(name)
        if table is None:
            if not isinstance(name, str) or _NAME.fullmatch(name) is None:
                raise ValueError("invalid table name; use letters, digits and _, and do not begin with a digit")
            if len(self._tables) >= MAX_TABLES:
                raise ValueError(f"more than {MAX_TABLES} tables; record into an existing one")
            table = self._tables[name] = _JobTable(name, values, self.recorder.buffer)
        table.add(int(step), values)
