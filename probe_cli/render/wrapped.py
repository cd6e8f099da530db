"""A table on a terminal that shows every name and value whole: the prose wraps, nothing is cut or left out.

Where even that has no room, each row is a block of lines, `column  value`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .sheet import Sheet
from .table import GAP, cell_text, is_numeric
from .terminal import bold, dim, visible, width_of, wrap

__all__ = ["wrapped"]

#: Prose in less than this is a ladder of words: then every row becomes a block.
NARROWEST = 20


def wrapped(sheet: Sheet, width: int, colour: bool = False) -> Iterator[str]:
    """The lines of `sheet`, none wider than `width`."""
    headings = [visible(name) for name in sheet.columns]
    cells = [[cell_text(value) for value in row] for row in sheet.rows]
    widths = [max(map(width_of, texts)) for texts in zip(headings, *cells, strict=True)]
    if sheet.prose is not None:
        at = sheet.columns.index(sheet.prose)
        taken = sum(widths) - widths[at] + len(GAP) * (len(widths) - 1)
        widths[at] = min(widths[at], max(NARROWEST, width - taken))
    if sum(widths) + len(GAP) * (len(widths) - 1) > width:
        return _blocks(headings, cells, width, colour)
    return _grid(sheet, headings, cells, widths, colour)


def _grid(
    sheet: Sheet, headings: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], colour: bool
) -> Iterator[str]:
    numeric = [is_numeric(type_) for type_ in sheet.types]

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
