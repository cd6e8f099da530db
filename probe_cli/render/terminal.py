"""What the terminal can do: its width, and whether it wants colour."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from typing import TextIO

__all__ = ["bold", "columns_of", "cut", "dim", "red", "visible", "wants_colour", "width_of", "wrap"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def columns_of(stream: TextIO) -> int | None:
    """The width to fit into; None when `stream` is no terminal and nothing may be cut."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wants_colour(stream: TextIO) -> bool:
    """True on a terminal that has not been told otherwise (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def visible(text: str) -> str:
    """`text` on one line, its control characters spelt out: what a target stores must not steer a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def width_of(text: str) -> int:
    """How many cells `text` takes; CJK and emoji take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(_cells(character) for character in text)


def cut(text: str, width: int) -> str:
    """`text` in at most `width` cells, ending in … when something is missing."""
    if width_of(text) <= width:
        return text
    kept, used = [], 1
    for character in text:
        used += _cells(character)
        if used > width:
            break
        kept.append(character)
    return "".join(kept) + "…"


def wrap(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` cells, broken between words; within a word where that alone is wider."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and width_of(lines[-1]) + 1 + width_of(word) <= width:
            lines[-1] += " " + word
            continue
        if lines[-1]:
            lines.append("")
        for character in word:
            if lines[-1] and width_of(lines[-1]) + _cells(character) > width:
                lines.append("")
            lines[-1] += character
    return lines


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def bold(text: str, colour: bool) -> str:
    return f"\x1b[1m{text}\x1b[0m" if colour else text


def dim(text: str, colour: bool) -> str:
    return f"\x1b[2m{text}\x1b[0m" if colour else text


def red(text: str, colour: bool) -> str:
    return f"\x1b[31m{text}\x1b[0m" if colour else text
