"""The notebook cell that a file of IPython's stands for: `In [3]` for /tmp/ipykernel_77/1233.py, and its lines.

Runs on a thread of ours; a few dictionary lookups. IPython's shell is looked up, never imported and never called.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["cell_line", "cell_name"]


def cell_name(file: str) -> str | None:
    """`In [3]`, or None for what is no cell of this process."""
    number = _numbers().get(file)
    return f"In [{number}]" if isinstance(number, int) else None


def cell_line(file: str, lineno: int) -> str | None:
    """The text of a line of a cell, which is in no file that others could read."""
    entry: Any = getattr(sys.modules.get("linecache"), "cache", {}).get(file)
    lines = entry[2] if isinstance(entry, tuple) and len(entry) > 2 else ()
    return str(lines[lineno - 1]).strip() if 0 < lineno <= len(lines) else None


def _numbers() -> dict[str, object]:
    """The execution count of each cell, by the name of its file."""
    shells: Any = sys.modules.get("IPython.core.interactiveshell")
    shell = getattr(getattr(shells, "InteractiveShell", None), "_instance", None)
    try:
        found = vars(vars(shell)["compile"])["_filename_map"]
    except (TypeError, KeyError):
        return {}  # no IPython, or one that does not keep them
    return found if isinstance(found, dict) else {}
