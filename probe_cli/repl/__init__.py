"""Python in the target, line by line: reading lines here, running them there.

Imports prompt_toolkit only on a terminal.
"""

from .loop import repl

__all__ = ["repl"]
