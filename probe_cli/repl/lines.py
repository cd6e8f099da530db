"""Whole statements out of lines: when one is complete, and those of a piped script.

A statement is complete by the same rule as at Python's own prompt, so that several lines can be typed.
"""

from __future__ import annotations

import ast
import codeop
import sys
import warnings
from collections.abc import AsyncIterator

__all__ = ["is_complete", "piped"]


def is_complete(text: str) -> bool:
    """Whether `text` can be run. What this Python cannot parse is left to the target's Python to refuse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if codeop.compile_command(text, "<probe>", "exec") is None:
                return False
            body = ast.parse(text).body
        except (SyntaxError, ValueError, OverflowError):
            return True
    last = text.rpartition("\n")[2]
    in_block = bool(body) and hasattr(body[-1], "body") and bool(last.strip()) and last[0] in " \t"
    return not in_block  # an empty line ends a block


async def piped() -> AsyncIterator[str]:
    """Statements from stdin, until it ends."""
    waiting = ""
    for line in sys.stdin:
        text = line.rstrip("\n")
        # An unindented line behind a block ends it, as when a script is pasted; `else` and the like carry on.
        if waiting and text and text[0] not in " \t)]}" and is_complete(waiting + "\n") and not _carries_on(text):
            yield waiting
            waiting = ""
        waiting = f"{waiting}\n{text}" if waiting else text
        if not waiting.strip():
            waiting = ""
        elif is_complete(waiting):
            yield waiting
            waiting = ""
    if waiting.strip():
        yield waiting


def _carries_on(text: str) -> bool:
    return text.split(":")[0].split(" ")[0] in ("else", "elif", "except", "finally", "case")
