"""Disks: counters of /proc/diskstats, and the mounts that a process has its work on, with what is free there.

Takes about 0.1 ms, and for each target 1 ms for every thousand open files.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from probe_agent.procfs import ENDED, Process
from probe_agent.units import MIB

from .sample import Sample

__all__ = ["COUNTERS", "Mount", "Use", "disks", "mounts", "parsed_disks", "quota", "uses"]

COUNTERS = ("reads", "read", "read_time", "writes", "written", "write_time", "busy")
_SECTORS_A_MIB = 2048
#: File systems that hold no work of a job.
_NO_DISKS = frozenset(
    ("proc", "sysfs", "devpts", "devtmpfs", "cgroup", "cgroup2", "mqueue", "bpf", "nsfs", "autofs", "rpc_pipefs")
)
_OCTAL = re.compile(r"\\([0-7]{3})")


def disks(proc: Path = Path("/proc")) -> dict[str, Sample]:
    """Return a sample of each disk by its number `254:0`."""
    return dict(parsed_disks((proc / "diskstats").read_text()))


def parsed_disks(text: str) -> Iterator[tuple[str, Sample]]:
    """Yield the disks of /proc/diskstats: 14 columns, more since Linux 4.18 and 5.5."""
    for line in text.splitlines():
        major, minor, _, *fields = line.split()
        reads, _, read, read_ms, writes, _, written, write_ms, _, busy_ms, *_ = map(int, fields)
        if reads or writes:
            yield (
                f"{major}:{minor}",
                Sample(
                    (
                        reads,
                        read / _SECTORS_A_MIB,
                        read_ms / 1e3,
                        writes,
                        written / _SECTORS_A_MIB,
                        write_ms / 1e3,
                        busy_ms / 1e3,
                    )
                ),
            )


@dataclass(frozen=True)
class Mount:
    """One mount as a process sees it; `disk` is the number of its device."""

    path: str
    disk: str
    kind: str
    source: str
    is_read_only: bool


def mounts(text: str) -> list[Mount]:
    """Return the mounts of /proc/PID/mountinfo in their order: a later one hides an earlier one at its place."""
    return list(_mounts(text))


def _mounts(text: str) -> Iterator[Mount]:
    for line in text.splitlines():
        before, _, behind = line.partition(" - ")
        _, _, disk, _, path, options, *_ = before.split(" ")
        kind, source, *_ = behind.split(" ")
        path, source = (_OCTAL.sub(lambda found: chr(int(found[1], 8)), text) for text in (path, source))
        yield Mount(path, disk, kind, source, "ro" in options.split(","))


@dataclass
class Use:
    """Files of a process on one mount."""

    mount: Mount
    num_open: int = 0
    is_cwd: bool = False
    #: A path of the command line is on it.
    argument: str = ""


def uses(process: Process, *, but: str = "") -> list[Use]:
    """Return the mounts that a process works on: those of its working directory, of the files that it has open for
    writing, without those in a folder called `but`, and of paths in its command line. Raises one of ENDED, or
    PermissionError."""
    known = [mount for mount in mounts(process.read("mountinfo")) if mount.kind not in _NO_DISKS]
    found: dict[str, Use] = {}

    def use(path: str) -> Use | None:
        mount = _of(path, known)
        return None if mount is None else found.setdefault(mount.path, Use(mount))

    cwd = os.readlink(f"{process.proc}/cwd")
    if (one := use(cwd)) is not None:
        one.is_cwd = True
    for path in _written(process):
        if (not but or f"/{but}/" not in path) and (one := use(path)) is not None:
            one.num_open += 1
    for word in process.command[1:]:
        path = os.path.normpath(os.path.join(cwd, word.partition("=")[2] if word.startswith("-") else word))
        if "/" in word and os.path.exists(process.from_outside(path)) and (one := use(path)) is not None:
            one.argument = one.argument or path
    return list(found.values())


def _written(process: Process) -> Iterator[str]:
    """Yield the paths of the files that a process has open for writing."""
    for name in os.listdir(f"{process.proc}/fd"):
        with suppress(*ENDED):
            path = os.readlink(f"{process.proc}/fd/{name}")
            # A descriptor that is open for writing has the owner's write bit on its link.
            if path.startswith("/") and os.lstat(f"{process.proc}/fd/{name}").st_mode & 0o200:
                yield path


def _of(path: str, known: list[Mount]) -> Mount | None:
    inside = [mount for mount in known if mount.path == "/" or path == mount.path or path.startswith(mount.path + "/")]
    return max(enumerate(inside), key=lambda one: (len(one[1].path), one[0]), default=(0, None))[1]


class _Quota(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("hard", "soft", "used", "inode_hard", "inode_soft", "inodes")),
        *((name, ctypes.c_uint64) for name in ("grace", "inode_grace")),
        ("valid", ctypes.c_uint32),
    )


_GET_QUOTA = 0x800007
_libc = ctypes.CDLL(None, use_errno=True)


def quota(device: str, uid: int, gid: int) -> tuple[float, float] | None:
    """Return the MiB that a user or its group uses on a device and may use, of whichever is nearer to its limit; None
    where there is no such limit, or the kernel does not tell. A quota of a project or of NFS shows as free space."""
    found = []
    for which, number in ((0, uid), (1, gid)):
        told = _Quota()
        if device.startswith("/dev/") and not _libc.quotactl(
            ctypes.c_int(_GET_QUOTA << 8 | which), device.encode(), ctypes.c_int(number), ctypes.byref(told)
        ):
            limit = min((blocks for blocks in (told.hard, told.soft) if blocks), default=0)
            if limit:
                found.append((told.used / MIB, limit / 1024))  # blocks of 1 KiB, but used in bytes
    return min(found, key=lambda one: one[1] - one[0], default=None)
