"""Writes answers to stdout in the format that was asked for, and what is to be known about them to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from probe_agent.errors import BadRequest
from probe_cli.cluster.fanout import Answers
from probe_cli.endpoint import Endpoint
from probe_cli.messages import remark

from .output import stdout_to
from .sheet import LINE_FORMATS, Sheet, envelope_lines
from .table import table, wrapped
from .terminal import bold, columns_of, wants_colour

__all__ = [
    "heading",
    "in_both_forms",
    "is_brief",
    "is_envelope",
    "show",
    "show_answers",
    "show_envelope",
    "who_answered",
]

T = TypeVar("T")
Shows = TypeVar("Shows", bound=Callable[..., None])

#: The file for the envelope of what a command prints: `probe report` keeps one judgement for people and for programs.
envelope_file: str | None = None


def in_both_forms(shows: Shows) -> Shows:
    """Let `shows`, whose last argument is the format, also write to `envelope_file`, if there is one."""

    @wraps(shows)
    def both(*args: Any) -> None:
        shows(*args)
        if envelope_file:
            with stdout_to(envelope_file):
                shows(*args[:-1], "envelope")

    return both  # type: ignore[return-value]  # of the same parameters


def is_brief(format_: str) -> bool:
    """Whether people read this on a terminal: there a command may leave out what it shows on request."""
    return format_ == "table" and columns_of(sys.stdout) is not None


def is_envelope(format_: str, answers: Answers[T]) -> bool:
    """Whether JSON is one object that says who answered: of several endpoints, and where it was asked for."""
    return format_ == "envelope" or (format_ == "json" and answers.num_asked > 1)


def show(sheet: Sheet, format_: str) -> None:
    """Print `sheet`; stderr names the columns that a narrow terminal has no room for."""
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


def show_answers(
    answers: Answers[T],
    sheets: Sequence[tuple[Endpoint, Sheet]],
    format_: str,
    notes: Sequence[tuple[Endpoint, str]] = (),
) -> None:
    """Print the sheet of each endpoint: of several, each under a heading, or with a column `endpoint` in front. The
    notes, each of an endpoint, go to stderr, and into the envelope."""
    several = answers.num_asked > 1
    texts = [f"{endpoint}: {note}" if several else note for endpoint, note in notes]
    if is_envelope(format_, answers):
        show_envelope(_joined(sheets) if several else sheets[0][1], answers, texts)
    elif not several:
        show(sheets[0][1], format_)
    elif format_ == "table":
        for at, (endpoint, sheet) in enumerate(sheets):
            heading(str(endpoint), first=at == 0)
            show(sheet, format_)
    elif sheets:
        show(_joined(sheets), format_)
    for text in texts:
        remark(text)


def show_envelope(sheet: Sheet, answers: Answers[T], notes: Sequence[str], **more: object) -> None:
    """Print one JSON object: rows, columns, notes, who answered and who did not, and `more`."""
    fields = {**more, "notes": list(notes), **who_answered(answers)}
    sys.stdout.writelines(line + "\n" for line in envelope_lines(sheet, fields))
    sys.stdout.flush()


def who_answered(answers: Answers[T]) -> dict[str, list[object]]:
    """The fields `answered` and `unanswered` of an envelope."""
    return {
        "answered": [str(endpoint) for endpoint, _ in answers.answered],
        "unanswered": [
            {"endpoint": str(endpoint), "message": error.message, "hint": error.hint}
            for endpoint, error in answers.unanswered
        ],
    }


def heading(text: str, first: bool) -> None:
    """A line above the answer of one of several endpoints."""
    print(("" if first else "\n") + bold(f"== {text} ==", wants_colour(sys.stdout)), flush=True)


def _joined(sheets: Sequence[tuple[Endpoint, Sheet]]) -> Sheet:
    """All rows in one sheet, with a column `endpoint` in front."""
    if not sheets:
        return Sheet((), (), ())
    (first_endpoint, first), *others = sheets
    for endpoint, sheet in others:
        if sheet.columns != first.columns:
            raise BadRequest(
                f"{endpoint} has other columns than {first_endpoint}", "ask them one by one, or with --format table"
            )
    rows = [(str(endpoint), *row) for endpoint, sheet in sheets for row in sheet.rows]
    return Sheet(("endpoint", *first.columns), ("VARCHAR", *first.types), rows, first.prose)
