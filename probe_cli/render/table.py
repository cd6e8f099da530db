"""Aligned tables that fit a terminal, and are whole in a pipe.

`table` cuts wide texts, and leaves out the last columns where that is not enough. `wrapped` shows every name and value
whole: prose wraps, and where even that has no room, each row is a block of lines, `column  value`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal

from .sheet import Sheet
from .terminal import bold, cut, dim, visible, width_of, wrap

__all__ = ["table", "wrapped"]

GAP = "  "
#: No text column is cut below this: less than that tells nothing.
NARROWEST = 12
#: Prose in less than this is a ladder of words: then every row becomes a block.
NARROWEST_PROSE = 20
_NUMERIC = (
    "DOUBLE",
    "FLOAT",
    "REAL",
    "DECIMAL",
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "HUGEINT",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "UBIGINT",
    "UHUGEINT",
)


def table(sheet: Sheet, width: int | None = None, colour: bool = False) -> tuple[Iterator[str], tuple[str, ...]]:
    """The lines of the table, and the columns for which `width` has no room even with every text cut.

    Without `width` nothing is cut and nothing is left out.
    """
    cells = [[_cell_text(value) for value in row] for row in sheet.rows]
    widths = _widths(sheet, cells)
    if width is not None:
        widths = _fitted(sheet, widths, width)
    return _lines(sheet, cells, widths, colour), sheet.columns[len(widths) :]


def _lines(sheet: Sheet, cells: Sequence[Sequence[str]], widths: Sequence[int], colour: bool) -> Iterator[str]:
    numeric = [_is_numeric(type_) for type_ in sheet.types]

    def line(texts: Sequence[str]) -> str:
        aligned = []
        for text, width, right in zip(texts, widths, numeric, strict=False):  # columns left out have no width
            text = cut(text, width)
            pad = " " * (width - width_of(text))
            aligned.append(pad + text if right else text + pad)
        return GAP.join(aligned).rstrip()

    yield bold(line([visible(name) for name in sheet.columns]), colour)
    yield dim(GAP.join("-" * width for width in widths), colour)
    for row in cells:
        yield line(row)


def _widths(sheet: Sheet, cells: Sequence[Sequence[str]]) -> list[int]:
    widths = [width_of(visible(name)) for name in sheet.columns]
    for row in cells:
        for at, text in enumerate(row):
            if (needed := width_of(text)) > widths[at]:
                widths[at] = needed
    return widths


def _fitted(sheet: Sheet, widths: list[int], width: int) -> list[int]:
    """`widths` made to fit: the widest texts shrink first, then the last columns go. Numbers are never cut."""
    fitted = list(widths)
    floors = [
        needed if _is_numeric(type_) else min(needed, max(NARROWEST, width_of(name)))
        for needed, type_, name in zip(widths, sheet.types, sheet.columns, strict=True)
    ]
    while len(fitted) > 1 and sum(floors[: len(fitted)]) + len(GAP) * (len(fitted) - 1) > width:
        fitted.pop()
    excess = sum(fitted) + len(GAP) * (len(fitted) - 1) - width
    while excess > 0:
        room = [(fitted[at], at) for at in range(len(fitted)) if fitted[at] > floors[at]]
        if not room:
            fitted[0] = max(1, min(fitted[0], width))
            break
        _, at = max(room)
        fitted[at] -= 1
        excess -= 1
    return fitted


def wrapped(sheet: Sheet, width: int, colour: bool = False) -> Iterator[str]:
    """The lines of `sheet`, none wider than `width`."""
    headings = [visible(name) for name in sheet.columns]
    cells = [[_cell_text(value) for value in row] for row in sheet.rows]
    widths = [max(map(width_of, texts)) for texts in zip(headings, *cells, strict=True)]
    if sheet.prose is not None:
        at = sheet.columns.index(sheet.prose)
        taken = sum(widths) - widths[at] + len(GAP) * (len(widths) - 1)
        widths[at] = min(widths[at], max(NARROWEST_PROSE, width - taken))
    if sum(widths) + len(GAP) * (len(widths) - 1) > width:
        return _blocks(headings, cells, width, colour)
    return _wrapped_rows(sheet, headings, cells, widths, colour)


def _wrapped_rows(
    sheet: Sheet, headings: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], colour: bool
) -> Iterator[str]:
    numeric = [_is_numeric(type_) for type_ in sheet.types]

    def line(texts: Sequence[str]) -> str:
        aligned = []
        for text, width, right in zip(texts, widths, numeric, strict=True):
            pad = " " * (width - width_of(text))
            aligned.append(pad + text if right else text + pad)
        return GAP.join(aligned).rstrip()

    yield bold(line(headings), colour)
    yield dim(GAP.join("-" * width for width in widths), colour)
    for row in cells:
        columns = [wrap(text, width) for text, width in zip(row, widths, strict=True)]
        for at in range(max(map(len, columns))):
            yield line([lines[at] if at < len(lines) else "" for lines in columns])


def _blocks(headings: Sequence[str], cells: Sequence[Sequence[str]], width: int, colour: bool) -> Iterator[str]:
    first = max(map(width_of, headings))
    room = max(1, width - first - len(GAP))
    for number, row in enumerate(cells):
        if number:
            yield ""
        for heading, text in zip(headings, row, strict=True):
            for at, part in enumerate(wrap(text, room)):
                name = dim(heading, colour) + " " * (first - width_of(heading)) if at == 0 else " " * first
                yield (name + GAP + (bold(part, colour) if heading is headings[0] else part)).rstrip()


def _is_numeric(type_: str) -> bool:
    """Whether values of this SQL type stand on the right."""
    return type_.upper().startswith(_NUMERIC) and not type_.endswith("]")


def _cell_text(value: object) -> str:
    """A value as a table shows it."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | Decimal):
        return _number(float(value))
    if isinstance(value, list | dict):
        return visible(json.dumps(value, ensure_ascii=False))
    return str(value)


def _number(value: float) -> str:
    """Six digits that matter, and never fewer than those before the point. For all digits take json or csv."""
    if 1e5 <= abs(value) < 1e15:
        return f"{value:.1f}"
    return f"{value:.6g}"
