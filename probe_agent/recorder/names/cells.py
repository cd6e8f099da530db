"""Notebook cells behind IPython's file names: `In [3]` for /tmp/ipykernel_77/1233.py, and their lines.

Runs on a thread of the recorder: a few dictionary lookups. IPython's shell is looked up, never imported or called.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["cell_line", "cell_name"]


def cell_name(file: str) -> str | None:
    """Return the cell's name, `In [3]`, or None if the file is not a cell of this process."""
    number = _numbers().get(file)
    return f"In [{number}]" if isinstance(number, int) else None


def cell_line(file: str, lineno: int) -> str | None:
    """Return the text of a line of a cell, which exists in no file on disk."""
    entry: Any = getattr(sys.modules.get("linecache"), "cache", {}).get(file)
    lines = entry[2] if isinstance(entry, tuple) and len(entry) > 2 else ()
    return str(lines[lineno - 1]).strip() if 0 < lineno <= len(lines) else None


def _numbers() -> dict[str, object]:
    """Return the execution count of each cell by the name of its file."""
    shells: Any = sys.modules.get("IPython.core.interactiveshell")
    shell = getattr(getattr(shells, "InteractiveShell", None), "_instance", None)
    try:
        found = vars(vars(shell)["compile"])["_filename_map"]
    except (TypeError, KeyError):
        return {}  # no IPython, or a version without this map
    return found if isinstance(found, dict) else {}
