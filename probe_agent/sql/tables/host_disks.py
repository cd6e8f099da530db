"""`host.disks`: the mounts that each target works on: free space, quota, and how fast their disks answer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from time import time_ns

import numpy as np

from probe_agent.host import disks
from probe_agent.procfs import ENDED, Process
from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target
from probe_agent.track import Array
from probe_agent.units import MIB

from .host_history import coordinates, texts, with_rates
from .live_table import Columns, HostTable, Part

__all__ = ["HostDisks"]


class HostDisks(HostTable):
    name = "host.disks"
    doc = (
        "Mounts that a target works on when the query runs: of its working directory, of the files that it has open for"
        " writing, and of paths in its command line. The disk's rates are those of the newest interval: 5 s if a host"
        " server runs, 0.5 s otherwise; NULL of a network file system, and of memory."
    )
    columns = (
        Column("ts", "time", "UTC", "time of the look"),
        Column("mount", "text", "", "where it is, as the target sees it"),
        Column("kind", "text", "", "file system: ext4, xfs, nfs4, lustre, overlay, tmpfs"),
        Column("source", "text", "", "device or server"),
        Column("is_cwd", "bool", "", "the working directory is on it"),
        Column("num_open", "int", "", "files on it that the target has open for writing"),
        Column("argument", "text", "", "a path of the command line that is on it; NULL if there is none"),
        Column("is_read_only", "bool", "", "nothing can be written to it"),
        Column("size", "float", "MiB", "its size"),
        Column("free", "float", "MiB", "what the target's user can still write"),
        Column("inodes_free", "float", "", "files that can still be made; NULL if it has no such limit"),
        Column("quota_used", "float", "MiB", "what the target's user, or its group, has there; NULL without a quota"),
        Column("quota_limit", "float", "MiB", "what it may have there; NULL without a quota that the kernel tells"),
        Column("reads", "float", "1/s", "reads of the disk"),
        Column("read", "float", "MiB/s", "data read from it"),
        Column("read_latency", "float", "s", "mean time of a read, its wait in the queue included; NULL without reads"),
        Column("writes", "float", "1/s", "writes to the disk"),
        Column("written", "float", "MiB/s", "data written to it"),
        Column("write_latency", "float", "s", "mean time of a write, its wait in the queue included"),
        Column("busy", "float", "", "share of the time in which it had something to do"),
    )

    @classmethod
    def take_host(cls, targets: Sequence[Target]) -> tuple[Sequence[Part], Sequence[str]]:
        notes: list[str] = []
        try:
            found = dict(with_rates("disks", disks.COUNTERS))
        except OSError as error:
            found = {}
            notes.append(f"host.disks has no rates: {error}")
        parts: list[Part] = []
        for target in targets:
            process = target.process
            if process is None or not target.is_alive:
                continue
            try:
                uses = disks.uses(process, but=os.path.basename(os.path.dirname(target.folder)))
            except ENDED:
                continue
            except PermissionError:
                notes.append(f"{target}: its files cannot be seen; run as its user, or as root")
                continue
            parts += [Part(coordinates(target), cls.columns, [columns]) for columns in _rows(process, uses, found)]
        return parts, notes


def _rows(process: Process, uses: Sequence[disks.Use], found: Mapping[str, Mapping[str, Array]]) -> Iterator[Columns]:
    for use in uses:
        with suppress(OSError):  # a mount that does not answer, or that we may not look into
            room = os.statvfs(process.from_outside(use.mount.path))
            yield {**_of_mount(process, use, room), **_of_disk(found.get(use.mount.disk))}


def _of_mount(process: Process, use: disks.Use, room: os.statvfs_result) -> Columns:
    mount, unit = use.mount, room.f_frsize / MIB
    limit = disks.quota(mount.source, process.uid, process.gid)
    named = {
        "mount": mount.path,
        "kind": mount.kind,
        "source": mount.source,
        "is_cwd": use.is_cwd,
        "num_open": use.num_open,
        "argument": use.argument or None,
        "is_read_only": mount.is_read_only,
    }
    numbers = {
        "size": room.f_blocks * unit,
        "free": (room.f_bavail if process.uid else room.f_bfree) * unit,
        "inodes_free": room.f_favail if room.f_files else np.nan,
        "quota_used": limit[0] if limit else np.nan,
        "quota_limit": limit[1] if limit else np.nan,
    }
    return {
        "ts": np.array([time_ns() // 1000], "<i8").view("datetime64[us]"),
        **texts({name: [value] for name, value in named.items()}),
        **{name: np.array([value], float) for name, value in numbers.items()},
    }


def _of_disk(track: Mapping[str, Array] | None) -> Columns:
    """Return the newest rates of a disk."""
    newest = {name: np.nan if track is None else float(track[name][-1]) for name in disks.COUNTERS}
    times = {
        kind: newest.pop(f"{kind}_time") / count if (count := newest[f"{kind}s"]) else np.nan
        for kind in ("read", "write")
    }
    rates = {**newest, **{f"{kind}_latency": time for kind, time in times.items()}}
    return {name: np.array([value], float) for name, value in rates.items()}
