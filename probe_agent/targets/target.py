"""A target: what it says about itself, its folder, and whether it still runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from probe_agent.procfs import Process
from probe_agent.recorder.job.variables import rank_in
from probe_agent.recorder.ring.folder import CONTROL, STACKS, TARGET, ring_name

from .ended import End, end_of
from .folder_files import read_json
from .rings import Ring, RingError

__all__ = ["Target", "newest_step", "read_identity", "without_recorder"]

#: Fields that every identity has, besides a rank, which is null until it is known.
_NUMBERS = ("pid", "host_pid", "start_ticks", "world_size")


@dataclass(frozen=True, eq=False)
class Target:
    """A process with a recorder, or the files that one has left. `folder` is the path by which we reach it; empty for
    a process without a recorder, of which only the stacks can be read."""

    folder: str
    identity: dict[str, Any]  # target.json: its numbers are checked, the rest is as the recorder wrote it
    process: Process | None
    #: Whether its folder is locked: it runs, even if we do not see its process.
    is_held: bool = False

    @property
    def pid(self) -> int:
        """Its PID as we see it; what the recorder has written down once it has ended."""
        return self.process.pid if self.process else int(self.identity["host_pid"])

    @property
    def has_recorder(self) -> bool:
        return bool(self.folder)

    @property
    def rank(self) -> int | None:
        """Its rank in its job: 0 without a job, None until it is known."""
        rank = self.identity["rank"]
        return None if rank is None else int(rank)

    @property
    def world_size(self) -> int:
        return int(self.identity["world_size"])

    @property
    def job(self) -> str:
        """The name of its job, the same for all its ranks on all hosts; empty until it is known."""
        name = str(self.identity.get("job", ""))
        return name if name.isalpha() else ""  # earlier recorders said here where the ranks meet

    @property
    def roles(self) -> dict[str, int]:
        """Its coordinates along the dimensions in which its job is parallel, those that are known."""
        said = self.identity.get("roles")
        return {name: at for name, at in said.items() if type(at) is int} if isinstance(said, dict) else {}

    @property
    def asleep(self) -> dict[str, float]:
        """For how many seconds threads of it had not run when the recorder came, by their number."""
        said = self.identity.get("asleep")
        if not isinstance(said, dict):
            return {}
        return {tid: float(seconds) for tid, seconds in said.items() if isinstance(seconds, int | float)}

    @property
    def place_in_job(self) -> dict[str, object]:
        """Rank, world size and job as columns of its rows; NULL until they are known."""
        world_size = None if self.rank is None else self.world_size
        return {"rank": self.rank, "world_size": world_size, "job": self.job or None}

    @property
    def is_alive(self) -> bool:
        return self.process.is_alive if self.process else self.is_held

    @property
    def has_ended(self) -> bool:
        """Whether only its files are left: no process, not even a zombie."""
        return self.process is None and not self.is_held

    @property
    def state(self) -> str:
        """Its state in words, as the kernel tells it."""
        if self.process is not None:
            return self.process.state
        return "in another PID namespace" if self.is_held else "gone"

    @property
    def control_path(self) -> str:
        return os.path.join(self.folder, CONTROL)

    @property
    def stacks_path(self) -> str:
        return os.path.join(self.folder, STACKS)

    @property
    def end(self) -> End | None:
        """How it ended, or why its interpreter is shutting down; None while it runs."""
        found = end_of(self.folder, pid=self.pid, is_alive=self.is_alive) if self.has_recorder else None
        return None if found is None or (self.is_alive and found.at is None) else found

    def ring_path(self, table: str) -> str:
        return os.path.join(self.folder, ring_name(table))

    @property
    def ring_tables(self) -> list[str]:
        """Names of the tables that it has recorded rows of; none once it has been detached."""
        ending = ring_name("")
        try:
            return sorted(name[: -len(ending)] for name in os.listdir(self.folder) if name.endswith(ending))
        except FileNotFoundError:
            return []

    def __str__(self) -> str:
        if self.world_size > 1:
            return f"pid {self.pid} (rank {self.rank})"
        return f"pid {self.pid}"


def newest_step(target: Target) -> tuple[int, float] | None:
    """Return the newest recorded step and when it ended, in seconds since 1970; None before the first one."""
    try:
        row = Ring(target.ring_path("python.steps")).newest()
    except (RingError, OSError):
        return None  # no step yet; a query of a damaged ring says that it is damaged
    if row is None or not isinstance(row.get("step"), int) or not isinstance(row.get("ts"), int):
        return None
    return int(str(row["step"])), int(str(row["ts"])) * 1e-6


def without_recorder(process: Process) -> Target:
    """Return a target for a process without a recorder. Its rank is what its environment says, if we may read that."""
    rank: int | None
    try:
        told = rank_in(process.environment)
    except OSError:
        told = None
    rank, world_size = told or ((None if _is_of_multiprocessing(process) else 0), 1)
    identity = {"host": os.uname().nodename, "host_pid": process.pid, "rank": rank, "world_size": world_size}
    return Target("", identity, process)


def _is_of_multiprocessing(process: Process) -> bool:
    try:
        return any(word.startswith("from multiprocessing.") for word in process.command)
    except OSError:
        return False  # it has ended


def read_identity(folder: str, uid: int) -> dict[str, Any] | None:
    """Return what target.json in `folder` says; None if it is not there yet, or not written by a recorder of `uid`."""
    identity = read_json(os.path.join(folder, TARGET), owner=uid)
    if identity is None or any(not isinstance(identity.get(name), int) for name in _NUMBERS):
        return None
    return identity if isinstance(identity.get("rank", ""), int | None) else None
