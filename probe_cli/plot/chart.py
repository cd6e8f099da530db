"""A chart made of an answer's columns, or the reason why it cannot be drawn. Plain functions and data.

The first column is x: a number, a time, or a text. Every other number is y. A text among the others names the series,
and so does `rank`, unless it is all there is to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite, nan

from probe_agent.errors import BadRequest
from probe_agent.wire import QueryColumn

__all__ = ["MAX_SERIES", "Chart", "Series", "chart_of"]

#: More than these nobody can tell apart.
MAX_SERIES = 24
_NUMBERS = (
    "DOUBLE", "FLOAT", "REAL", "DECIMAL", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT",
    "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT", "BOOLEAN",
)  # fmt: skip
_TIMES = ("TIMESTAMP", "DATE")
_TEXTS = ("VARCHAR", "UUID", "ENUM")
EXAMPLE = "SELECT step, loss FROM python.steps ORDER BY step"

X = float | datetime | str


@dataclass(frozen=True)
class Series:
    """Points in the order of x; y is NaN where it is not known."""

    name: str
    xs: tuple[X, ...]
    ys: tuple[float, ...]


@dataclass(frozen=True)
class Chart:
    """`kind` is what x is: number, time or text."""

    x: str
    y: str
    kind: str
    series: tuple[Series, ...]
    #: Rows without an x, which are not drawn.
    num_left_out: int = 0


def chart_of(columns: Sequence[QueryColumn], rows: Sequence[Sequence[object]], by: str | None = None) -> Chart:
    """Return the chart of an answer; with `by` that column names the series. Raises BadRequest if it cannot be drawn,
    with what to select instead."""
    kinds = [_kind(column) for column in columns]
    if len(columns) < 2:
        raise BadRequest(
            "an answer of one column cannot be drawn: it takes x and y",
            f"select x first, then one or more numbers, as in: {EXAMPLE}",
        )
    names = [column.name for column in columns]
    series_at = _series_column(names, kinds, by)
    values = [at for at in range(1, len(columns)) if at != series_at]
    for at in values:
        if kinds[at] != "number":
            raise BadRequest(
                f"column {names[at]} cannot be drawn: y is a number, and it is {columns[at].type}",
                f"name it first to be x; or: --by {names[at]}" if kinds[at] == "time" else f"--by {names[at]}",
            )
    if not values:
        raise BadRequest("no column is left to be y", f"select a number as well, as in: {EXAMPLE}")
    points: dict[str, list[tuple[X, float]]] = {}
    for row in rows:
        x = _x(row[0], kinds[0])
        if x is None:
            continue
        for at in values:
            points.setdefault(_name(names, row, at, series_at, len(values) > 1), []).append((x, _number(row[at])))
    if len(points) > MAX_SERIES:
        raise BadRequest(
            f"{len(points)} series cannot be told apart", f"select {MAX_SERIES} at most, or aggregate them: GROUP BY"
        )
    if not any(isfinite(y) for line in points.values() for _, y in line):
        raise BadRequest(
            f"there is nothing to draw: {' and '.join(names[at] for at in values)} has no value in {len(rows)} rows",
            "select rows that have one: WHERE … IS NOT NULL",
        )
    num_left_out = sum(_x(row[0], kinds[0]) is None for row in rows)
    label = names[values[0]] if len(values) == 1 else ""
    return Chart(names[0], label, kinds[0], tuple(_series(*one, kinds[0]) for one in points.items()), num_left_out)


def _series_column(names: Sequence[str], kinds: Sequence[str], by: str | None) -> int | None:
    if by is not None:
        if by not in names[1:]:
            why = "it is x" if by == names[0] else "the answer has no such column"
            raise BadRequest(f"--by {by}: {why}", f"name one of: {', '.join(names[1:])}")
        return names.index(by, 1)
    texts = [at for at in range(1, len(names)) if kinds[at] == "text"]
    if len(texts) > 1:
        both = " and ".join(names[at] for at in texts[:2])
        joined = " || ' ' || ".join(names[at] for at in texts[:2])
        raise BadRequest(f"columns {both} are both texts, and one names the series", f"select {joined} AS series")
    if texts:
        return texts[0]
    ranks = [at for at in range(1, len(names)) if names[at] == "rank"]
    return ranks[0] if ranks and len(names) > 2 else None


def _kind(column: QueryColumn) -> str:
    kind = column.type.upper()
    if kind.endswith("]"):
        found = ""
    else:
        of = {"number": _NUMBERS, "time": _TIMES, "text": _TEXTS}
        found = next((name for name, types in of.items() if kind.startswith(types)), "")
    if not found and kind not in ('"NULL"', "NULL"):
        raise BadRequest(
            f"column {column.name} cannot be drawn: it is {column.type}",
            "leave it out, or take a number of it, as in: len(column), epoch(column)",
        )
    return found or "number"


def _name(names: Sequence[str], row: Sequence[object], at: int, series_at: int | None, several: bool) -> str:
    if series_at is None:
        return names[at]
    value = row[series_at]
    own = "NULL" if value is None else str(value)
    own = own if isinstance(value, str) else f"{names[series_at]} {own}"
    return f"{own}, {names[at]}" if several else own


def _x(value: object, kind: str) -> X | None:
    if value is None:
        return None
    if kind == "text":
        return str(value)
    if kind == "time":
        return datetime.fromisoformat(str(value).replace("Z", "+00:00")).replace(tzinfo=None)
    number = _number(value)
    return number if isfinite(number) else None


def _number(value: object) -> float:
    """A number as JSON has it; NaN where it is none, and for infinities, which have no place on a chart."""
    try:
        number = float(str(int(value) if isinstance(value, bool) else value))
    except ValueError:
        return nan
    return number if isfinite(number) else nan


def _series(name: str, points: Sequence[tuple[X, float]], kind: str) -> Series:
    ordered = points if kind == "text" else sorted(points, key=lambda point: point[0])
    return Series(name, tuple(x for x, _ in ordered), tuple(y for _, y in ordered))
