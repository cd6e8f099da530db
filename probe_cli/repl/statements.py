"""When is a statement complete? The same rule as Python's own prompt, so that several lines can be typed."""

from __future__ import annotations

import ast
import codeop
import warnings

__all__ = ["is_complete"]


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
