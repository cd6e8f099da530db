"""`process.memory`: host memory of each target and the limits in force, as the kernel counts them."""

from __future__ import annotations

from collections.abc import Sequence

from probe_agent.errors import NoAnswer
from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target, host_memory, newest_step

from .live_table import STEP, LiveTable, Row

__all__ = ["ProcessMemory"]


class ProcessMemory(LiveTable):
    name = "process.memory"
    doc = (
        "Host memory of the target and of its loader workers, and the limits in force, read from /proc and"
        " /sys/fs/cgroup when the query runs; the target is not asked."
    )
    columns = (
        STEP,
        Column("rss", "float", "MiB", "resident memory"),
        Column("anonymous", "float", "MiB", "part of rss that no file holds: tensors on the CPU, Python objects"),
        Column("file", "float", "MiB", "part of rss in files: libraries, mapped data sets"),
        Column("shmem", "float", "MiB", "part of rss in shared memory: batches of workers, the recorder's rings"),
        Column("swap", "float", "MiB", "anonymous memory that is swapped out"),
        Column("locked", "float", "MiB", "memory that the kernel may not move or swap; not that pinned by CUDA"),
        Column("pss", "float", "MiB", "proportional set size: shared pages divided among their users; NULL if large"),
        Column("private", "float", "MiB", "memory that its end would give back; NULL if large"),
        Column("num_workers", "int", "", "loader workers"),
        Column("workers_rss", "float", "MiB", "sum of their resident memory; shared pages count in each"),
        Column("workers_private", "float", "MiB", "sum of their private memory"),
        Column("cgroup", "text", "", "the control group whose limit comes first, or its own group without a limit"),
        Column("cgroup_used", "float", "MiB", "memory charged to that group, page cache included"),
        Column("cgroup_limit", "float", "MiB", "its limit; NULL if there is none"),
        Column("cgroup_page_cache", "float", "MiB", "its page cache without shared memory: given back on demand"),
        Column("cgroup_shmem", "float", "MiB", "its shared memory and files in tmpfs, /dev/shm included"),
        Column("address_space", "float", "MiB", "size of the address space"),
        Column("address_limit", "float", "MiB", "its limit (ulimit -v); NULL if there is none"),
        Column("host_total", "float", "MiB", "memory of the host"),
        Column("host_available", "float", "MiB", "memory of the host that is available without swapping"),
        Column("shm_used", "float", "MiB", "space used in the target's /dev/shm, by all processes"),
        Column("shm_size", "float", "MiB", "size of /dev/shm"),
    )

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        try:
            memory = host_memory(target)
        except PermissionError as refusal:
            raise NoAnswer(
                f"cannot read the memory of {target}: {refusal.strerror}", "run as its user, or as root"
            ) from refusal
        if memory is None:
            return [], [f"{target} has ended: it has no memory now; what it recorded is in process.samples"]
        newest = newest_step(target)
        group = memory.cgroup
        of_group = (
            (None,) * 5 if group is None else (group.path, group.used, group.limit, group.page_cache, group.shmem)
        )
        row = (
            newest[0] if newest else None,
            memory.rss,
            memory.anonymous,
            memory.file,
            memory.shmem,
            memory.swap,
            memory.locked,
            memory.pss,
            memory.private,
            memory.num_workers,
            memory.workers_rss,
            memory.workers_private,
            *of_group,
            memory.address_space,
            memory.address_limit,
            memory.host_total,
            memory.host_available,
            memory.shm_used,
            memory.shm_size,
        )
        return [row], [f"{target}: {note}" for note in memory.notes]
