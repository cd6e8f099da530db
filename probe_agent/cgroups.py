"""Control groups that a process is in, of version 1 and 2, as folders of /sys/fs/cgroup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["CGROUPS", "Level", "levels"]

CGROUPS = Path("/sys/fs/cgroup")


class Level(NamedTuple):
    """One group: the version of its hierarchy, its folder, and its path in that hierarchy."""

    version: int
    folder: Path
    path: str


def levels(text: str, controller: str, root: Path = CGROUPS) -> Iterator[Level]:
    """Yield the groups that a process is in and may have a controller's files, its own before those above it; `text` is
    its /proc/PID/cgroup."""
    for line in sorted(text.splitlines(), key=lambda line: line.startswith("0:")):
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            yield from _upwards(1, root / controller, path)
        elif not controllers:
            top = root / "unified"  # beside version 1
            yield from _upwards(2, top if (top / "cgroup.procs").exists() else root, path)


def _upwards(version: int, top: Path, path: str) -> Iterator[Level]:
    folder = top / path.lstrip("/")
    # In a container the kernel may name the group as the host sees it, where we see only its own.
    folder = folder if ".." not in path and folder.is_dir() else top
    for level in (folder, *folder.parents):
        yield Level(version, level, "/" + str(level.relative_to(top)).lstrip("."))
        if level == top:
            break
