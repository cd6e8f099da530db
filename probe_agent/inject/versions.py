"""Which Python a process runs, as far as can be told from outside.

Runs in the attaching process; the target is only looked at.
"""

from __future__ import annotations

import re

from .threads.tracee import Tracee

__all__ = ["python_version"]


def python_version(process: Tracee) -> tuple[int, int] | None:
    """Major and minor version, by the names of its files; None when they do not tell."""
    for path in [*process.code_files, process.exe]:
        match = re.search(r"python(\d)\.(\d+)", path.rpartition("/")[2])
        if match:
            return int(match[1]), int(match[2])
    return None
