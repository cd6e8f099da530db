"""Writes a sheet to stdout in the format that was asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from probe_agent.errors import BadRequest

from .formats import LINE_FORMATS
from .sheet import Sheet
from .table import table
from .terminal import bold, columns_of, wants_colour
from .wrapped import wrapped

__all__ = ["heading", "is_brief", "show", "show_each"]


def is_brief(format_: str) -> bool:
    """Whether people read this on a terminal: there a command may leave out what it shows on request."""
    return format_ == "table" and columns_of(sys.stdout) is not None


def show(sheet: Sheet, format_: str, remark: Callable[[str], None]) -> None:
    """Print `sheet`; `remark` is told what a narrow terminal has no room for."""
    missing: tuple[str, ...] = ()
    width, colour = columns_of(sys.stdout), wants_colour(sys.stdout)
    if format_ == "table" and width is not None and sheet.prose is not None:
        lines = wrapped(sheet, width, colour)
    elif format_ == "table":
        lines, missing = table(sheet, width, colour)
    else:
        lines = LINE_FORMATS[format_](sheet)
    sys.stdout.writelines(line + "\n" for line in lines)
    sys.stdout.flush()
    if missing:
        remark(f"no room for {len(missing)} more columns: {', '.join(missing)} (name the columns, or --format json)")


def show_each(answers: Sequence[tuple[object, Sheet]], format_: str, remark: Callable[[str], None]) -> None:
    """Print the sheet of each endpoint: of several, each under a heading, or with a column `endpoint` in front."""
    if len(answers) == 1:
        show(answers[0][1], format_, remark)
    elif format_ == "table":
        for at, (endpoint, sheet) in enumerate(answers):
            heading(str(endpoint), first=at == 0)
            show(sheet, format_, remark)
    elif answers:
        for endpoint, sheet in answers[1:]:
            if sheet.columns != answers[0][1].columns:
                raise BadRequest(
                    f"the answer of {endpoint} has other columns than that of {answers[0][0]}",
                    "ask them one by one, or with --format table",
                )
        rows = [(str(endpoint), *row) for endpoint, sheet in answers for row in sheet.rows]
        first = answers[0][1]
        show(Sheet(("endpoint", *first.columns), ("VARCHAR", *first.types), rows, first.prose), format_, remark)


def heading(text: str, first: bool) -> None:
    """A line above the answer of one of several endpoints."""
    print(("" if first else "\n") + bold(f"== {text} ==", wants_colour(sys.stdout)), flush=True)
