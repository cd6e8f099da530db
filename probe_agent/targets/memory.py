"""Host memory of a target: its own, that of its loader workers, and the limits that it can run into.

Runs beside the target, out of /proc and /sys/fs/cgroup, so it answers for a target that holds its GIL or is stopped.
Takes 1 ms, and 10 to 70 ms per GiB for the proportional sizes: the kernel walks every page, and a thread of the target
that maps memory meanwhile may wait. They are therefore left out for large processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from probe_agent.cgroups import CGROUPS, levels
from probe_agent.procfs import ENDED, Process
from probe_agent.units import MIB

from .target import Target
from .workers import workers_of

__all__ = ["Cgroup", "HostMemory", "host_memory", "read_cgroup"]

#: Processes above this are not walked page by page.
WALK_MAX_MIB = 16 * 1024.0
#: Limits from here on mean that there is none.
_NO_LIMIT = 1 << 60
_KIB = 1 / 1024


@dataclass(frozen=True)
class Cgroup:
    """Memory of a control group with all groups below it, in MiB."""

    path: str
    used: float
    #: None if neither it nor a group above it has one.
    limit: float | None
    anonymous: float
    #: Page cache without shared memory, which the kernel can give back.
    page_cache: float
    shmem: float

    @property
    def headroom(self) -> float | None:
        """How much more fits once the page cache is given back."""
        return None if self.limit is None else self.limit - self.used + self.page_cache


@dataclass(frozen=True)
class HostMemory:
    """What the kernel says of one target, in MiB; None is unknown, or without a limit."""

    rss: float
    anonymous: float
    file: float
    shmem: float
    swap: float
    locked: float
    pss: float | None
    private: float | None
    num_workers: int
    workers_rss: float
    workers_private: float | None
    cgroup: Cgroup | None
    address_space: float
    address_limit: float | None
    host_total: float
    host_available: float
    shm_used: float | None
    shm_size: float | None
    notes: tuple[str, ...] = ()


def host_memory(target: Target) -> HostMemory | None:
    """Return the memory of a target now; None if it has ended. Raises PermissionError."""
    process = target.process
    if process is None or not target.is_alive:
        return None
    with suppress(*ENDED):
        return _host_memory(target, process)
    return None


def _host_memory(target: Target, process: Process) -> HostMemory:
    status = _sizes(process.read("status"))
    host = _sizes(Path("/proc/meminfo").read_text())
    notes: list[str] = []
    pages = _pages(process, status["VmRSS"], notes)
    workers = list(workers_of(target))
    private = [_pages(worker.process, worker.rss, notes) for worker in workers]
    shm = _shm(process)
    return HostMemory(
        rss=status["VmRSS"],
        anonymous=status.get("RssAnon", 0.0),
        file=status.get("RssFile", 0.0),
        shmem=status.get("RssShmem", 0.0),
        swap=status.get("VmSwap", 0.0),
        locked=status.get("VmLck", 0.0) + status.get("VmPin", 0.0),
        pss=pages.get("Pss"),
        private=_private(pages),
        num_workers=len(workers),
        workers_rss=sum(worker.rss for worker in workers),
        workers_private=None if not all(private) else sum(_private(one) or 0.0 for one in private),
        cgroup=read_cgroup(process),
        address_space=status.get("VmSize", 0.0),
        address_limit=_address_limit(process),
        host_total=host["MemTotal"],
        host_available=host["MemAvailable"],
        shm_used=shm and shm[0],
        shm_size=shm and shm[1],
        notes=tuple(dict.fromkeys(notes)),
    )


def _sizes(text: str) -> dict[str, float]:
    """Return the lines that are sizes, in MiB."""
    lines = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) * _KIB for words in lines if len(words) == 3 and words[2] == "kB"}


def _pages(process: Process, rss: float, notes: list[str]) -> Mapping[str, float]:
    """Return the sizes in smaps_rollup; empty if the kernel does not tell them, or the process is large."""
    if rss > WALK_MAX_MIB:
        notes.append(f"private and proportional memory is not read above {WALK_MAX_MIB / 1024:.0f} GiB")
        return {}
    try:
        return _sizes(process.read("smaps_rollup"))
    except (*ENDED, PermissionError):
        return {}


def _private(pages: Mapping[str, float]) -> float | None:
    return None if not pages else pages.get("Private_Clean", 0.0) + pages.get("Private_Dirty", 0.0)


def _address_limit(process: Process) -> float | None:
    """Return the limit that `ulimit -v` sets."""
    for line in process.read("limits").splitlines():
        if line.startswith("Max address space"):
            soft = line.split()[3]
            return None if soft == "unlimited" else int(soft) / MIB
    return None


def _shm(process: Process) -> tuple[float, float] | None:
    """Return the used and the whole space of its /dev/shm."""
    try:
        found = os.statvfs(process.from_outside("/dev/shm"))
    except OSError:
        return None
    unit = found.f_frsize / MIB
    return (found.f_blocks - found.f_bfree) * unit, found.f_blocks * unit


def read_cgroup(process: Process, root: Path = CGROUPS) -> Cgroup | None:
    """Return the control group whose limit the process reaches first, or its own if there is no limit. None if the
    host counts no memory by group, or does not show it."""
    found = list(_levels(process, root))
    limited = [group for group in found if group.limit is not None]
    return min(limited, key=lambda group: group.headroom or 0.0, default=found[0] if found else None)


def _levels(process: Process, root: Path) -> Iterator[Cgroup]:
    """Yield the group of the process and those above it that can be read."""
    for version, folder, path in levels(process.read("cgroup"), "memory", root):
        with suppress(OSError, KeyError, ValueError):
            yield (_version_1 if version == 1 else _version_2)(folder, path)


def _version_1(folder: Path, path: str) -> Cgroup:
    stat = _stat(folder)
    shmem = stat.get("total_shmem", 0.0)
    limit = int((folder / "memory.limit_in_bytes").read_text())
    used = int((folder / "memory.usage_in_bytes").read_text()) / MIB
    limit_mib = None if limit >= _NO_LIMIT else limit / MIB
    return Cgroup(path, used, limit_mib, stat["total_rss"], max(0.0, stat["total_cache"] - shmem), shmem)


def _version_2(folder: Path, path: str) -> Cgroup:
    limit = (folder / "memory.max").read_text().strip()  # the root has none
    stat = _stat(folder)
    used = int((folder / "memory.current").read_text()) / MIB
    limit_mib = None if limit == "max" else int(limit) / MIB
    shmem = stat.get("shmem", 0.0)
    return Cgroup(path, used, limit_mib, stat["anon"], max(0.0, stat["file"] - shmem), shmem)


def _stat(folder: Path) -> dict[str, float]:
    lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return {name: int(value) / MIB for name, value in lines}
