"""Options that several commands share, and reading a text from an argument, a file or stdin."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from probe_agent.errors import BadRequest

from .render.sheet import FORMATS

__all__ = ["format_option", "limits_options", "rank_set", "seconds", "text_from", "timeout_option"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

F = TypeVar("F", bound=Callable[..., Any])  # any function click can decorate


def format_option(*more: str) -> Callable[[F], F]:
    """`--format`, with the formats every sheet has and `more`."""
    return click.option(
        "--format",
        "format_",
        type=click.Choice([*FORMATS, *more]),
        default="table",
        show_default=True,
        help="Output format.",
    )


def timeout_option(default: float | None, help_: str) -> Callable[[F], F]:
    """`--timeout SECONDS`."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        default=default,
        metavar="SECONDS",
        show_default=default is not None,
        help=help_,
    )


def limits_options(command: F) -> F:
    """`--host-timeout` and `--max-transfer`, for a query to several endpoints."""
    host_timeout = click.option(
        "--host-timeout",
        "host_timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="With several endpoints: how long to wait for each.",
    )
    max_transfer = click.option(
        "--max-transfer",
        "max_transfer_mib",
        type=click.FloatRange(min=0, min_open=True),
        default=256.0,
        show_default=True,
        metavar="MIB",
        help="With several endpoints: how much they may send in all.",
    )
    return host_timeout(max_transfer(command))


def seconds(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """A click callback: a duration as people write it, in seconds."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    try:
        duration = float(number) * _UNITS[unit]
    except ValueError:
        duration = -1.0
    if not 0 <= duration < float("inf"):
        raise BadRequest(f"invalid duration {text!r} for {parameter.opts[-1]}", "use 90, 15m, 12h or 7d")
    return duration


def rank_set(context: click.Context, parameter: click.Parameter, text: str | None) -> frozenset[int]:
    """A click callback: ranks and ranges of ranks, as PROBE_RANKS takes them; empty where the option is not given."""
    found: set[int] = set()
    for part in text.split(",") if text is not None else ():
        first, dash, last = (end.strip() for end in part.partition("-"))
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) < 7 for end in ends) or int(ends[0]) > int(ends[1]):
            raise BadRequest(f"invalid ranks {text!r} for --rank", "use ranks and ranges, such as 0 or 0,4-7")
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(found)


def text_from(argument: str | None, path: str | None, what: str) -> str:
    """The text of `argument`, of the file `path`, or of stdin (`-`, or nothing named and stdin is no terminal)."""
    if argument not in (None, "-") and path is not None:
        raise BadRequest(f"{what} was given twice: as an argument and with -f", "leave out one of them")
    if argument is not None and argument != "-":
        return argument
    if path is not None and path != "-":
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError) as refusal:
            raise BadRequest(f"cannot read {path}: {refusal}", "name a readable text file") from refusal
    if argument is None and path is None and sys.stdin.isatty():
        raise BadRequest(f"{what} is missing", "give it as an argument, with -f FILE, or on stdin")
    return sys.stdin.read()
