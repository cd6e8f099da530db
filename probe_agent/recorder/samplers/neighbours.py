"""Deaths of other ranks on this host, recorded at once, so that the first of several can be told.

A killed rank takes the others down within a second: their connections break, or the launcher ends them. Its own
recorder can record nothing. So each recorder has the kernel wake it (pidfd) when another rank of this host dies, and
writes the time and the signal into the folder of the dead rank.

Runs on the recorder's thread: every 2 s it lists the folders of this user's targets, 15 µs. Under a seccomp filter it
makes no new system call: the tick checks the processes instead, every flush.interval.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from functools import partial
from time import monotonic, time, time_ns
from typing import NamedTuple

from ..guest.end_mark import exit_code_of, mark_gone
from ..ring.folder import TARGET, start_ticks
from ..source import Source as BaseSource

__all__ = ["Source"]

LOOK_S = 2.0
#: Ranks that are watched, with one descriptor each.
MAX_WATCHED = 64
_FOLDER = re.compile(r"(\d+)-(\d+)")


class Neighbour(NamedTuple):
    """Another rank on this host."""

    pid: int
    ticks: int
    folder: str

    @property
    def lives(self) -> bool:
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                text = file.read()
        except OSError:
            return False
        return start_ticks(text) == self.ticks and text.rpartition(")")[2].split()[0] not in "ZX"


class Source(BaseSource):
    name = "neighbours"
    needs = ("torch.distributed.distributed_c10d",)
    _look_at = 0.0

    def start(self) -> None:
        self._parent, self._own = os.path.split(self.recorder.folder)
        self._seen: set[str] = set()
        #: Ranks by descriptor; those without one are polled.
        self._watched: dict[int, Neighbour] = {}
        self._looked_at: list[Neighbour] = []
        self._may_watch = hasattr(os, "pidfd_open") and not _is_filtered()

    def tick(self) -> None:
        for neighbour in [neighbour for neighbour in self._looked_at if not neighbour.lives]:
            self._looked_at.remove(neighbour)
            self._say(neighbour, None)
        now = monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._find()

    def stop(self) -> None:
        for descriptor in list(self._watched):
            self.recorder.unwatch(descriptor)
            self._forget(descriptor)
        self._looked_at.clear()

    def _find(self) -> None:
        names = {name for name in os.listdir(self._parent) if _FOLDER.fullmatch(name)}
        self._seen &= names
        for name in names - self._seen - {self._own}:
            if len(self._watched) + len(self._looked_at) >= MAX_WATCHED:
                return
            self._meet(name)

    def _meet(self, name: str) -> None:
        folder = os.path.join(self._parent, name)
        try:
            with open(os.path.join(folder, TARGET)) as file:
                world_size = json.load(file)["world_size"]
        except (OSError, ValueError, KeyError):
            return  # not complete yet: the next search finds it
        if world_size < 2:
            return  # not known yet, or not a rank of a distributed job
        self._seen.add(name)
        pid, ticks = map(int, name.split("-"))
        neighbour = Neighbour(pid, ticks, folder)
        if not neighbour.lives:
            return  # already dead, or in another PID namespace
        if not self._may_watch:
            self._looked_at.append(neighbour)
            return
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            self._looked_at.append(neighbour)  # an older kernel, or no descriptor left
            return
        self._watched[descriptor] = neighbour
        self.recorder.watch(descriptor, partial(self._died, descriptor))

    def _died(self, descriptor: int) -> None:
        neighbour = self._watched[descriptor]
        self._say(neighbour, descriptor)
        self._forget(descriptor)

    def _say(self, neighbour: Neighbour, descriptor: int | None) -> None:
        code = exit_code_of(neighbour.pid, descriptor)
        mark_gone(neighbour.folder, time(), code, f"the recorder of pid {os.getpid()}")
        now = time_ns()
        os.utime(self.recorder.folder, ns=(now, now))  # later than the mark; the kernel's own clock is too coarse

    def _forget(self, descriptor: int) -> None:
        del self._watched[descriptor]
        with suppress(OSError):
            os.close(descriptor)


def _is_filtered() -> bool:
    with open("/proc/self/status") as file:
        return any(line.split() == ["Seccomp:", "2"] for line in file)
