"""Coalescing of a table's small parts, so that the 2 ms that DuckDB takes to register a part are paid once.

Runs in a query worker. Large parts stay where they lie, since copying them would cost more.
What is copied anyway is made simple: a coordinate that all parts share stays a constant (those that lack one are put
together among themselves), and in a column of floats without a NaN, NULL is NaN, as DuckDB reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from probe_agent.recorder.ring.table import COORDINATES, NULL_FLOAT, Column
from probe_agent.sql.tables.live_table import Columns, Part

__all__ = ["coalesce"]

#: Rows of a table that are copied: 80,000 of `python.torch_trace` take 2 ms.
MAX_ROWS = 100_000


def coalesce(parts: Sequence[Part]) -> list[Part]:
    """Return the same rows in fewer parts, the oldest first; their coordinates become columns."""
    if sum(map(_num_rows, parts)) > MAX_ROWS or sum(len(part.segments) for part in parts) < 2:
        return list(parts)
    alike: dict[object, list[Part]] = {}
    for part in parts:
        known = tuple(part.coordinates.get(column.name) is not None for column in COORDINATES)
        alike.setdefault((tuple(part.columns), part.strings is None, known), []).append(part)
    return [*map(_joined, alike.values())]


def _num_rows(part: Part) -> int:
    return sum(len(values) for segment in part.segments for values in list(segment.values())[:1])


def _joined(parts: Sequence[Part]) -> Part:
    """Return parts with the same columns as one part of one segment."""
    shared = {c.name: parts[0].coordinates.get(c.name) for c in COORDINATES if _is_shared(c.name, parts)}
    own = [column for column in COORDINATES if column.name not in shared]
    columns = (*own, *parts[0].columns)
    strings: list[str] | None = None if parts[0].strings is None else []
    pieces: list[Columns] = []
    for part in parts:
        shift = 0
        if strings is not None and part.strings is not None:
            shift = len(strings)
            strings += part.strings
        for segment in part.segments:
            num_rows = len(next(iter(segment.values())))
            piece = {column.name: _shifted(segment[column.name], column, shift) for column in part.columns}
            pieces.append({**dict(_constants(own, part, num_rows, strings)), **piece})
    segment = {column.name: np.concatenate([piece[column.name] for piece in pieces]) for column in columns}
    plain = () if strings is None else [c.name for c in columns if c.kind == "float" and _made_plain(segment[c.name])]
    return Part(shared, columns, [segment], strings, frozenset(plain))


def _is_shared(name: str, parts: Sequence[Part]) -> bool:
    return all(part.coordinates.get(name) == parts[0].coordinates.get(name) for part in parts)


def _made_plain(values: np.ndarray[Any, Any]) -> bool:
    """Make NULL NaN in `values`, unless a NaN is among them; return whether that was done."""
    if np.isnan(values).any():
        return False
    values[values == NULL_FLOAT] = np.nan
    return True


def _shifted(values: np.ndarray[Any, Any], column: Column, shift: int) -> np.ndarray[Any, Any]:
    """Return text as numbers of the strings of all parts; 0 stays NULL."""
    if column.kind != "text" or not shift:
        return values
    shifted: np.ndarray[Any, Any] = np.where(values > 0, values + np.uint32(shift), np.uint32(0))
    return shifted


def _constants(
    columns: Sequence[Column], part: Part, num_rows: int, strings: list[str] | None
) -> Iterable[tuple[str, np.ndarray[Any, Any]]]:
    for column in columns:
        value = part.coordinates[column.name]
        if column.kind != "text":
            yield column.name, np.full(num_rows, value, np.int64)
        elif strings is None:
            yield column.name, np.full(num_rows, value, object)
        else:
            strings.append(str(value))
            yield column.name, np.full(num_rows, len(strings), np.uint32)
