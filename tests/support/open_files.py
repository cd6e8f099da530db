"""Files that another process has open, as the kernel tells it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["open_files"]


def open_files(pid: int) -> Iterator[str]:
    """Yield the path or the kind of each file that the process has open; those it closes meanwhile are left out."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield os.readlink(entry)
