"""One look at the targets of this host: this user's, or everybody's when root looks.

Runs on every request, a fraction of a millisecond: what earlier looks have read of ended targets, of which a host may
have hundreds, is not read again. Targets in other mount namespaces (containers) are found through
/proc/PID/root of one process in each namespace; to find these processes takes 2 ms for 100 processes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from time import time

from probe_agent.procfs import Process, all_pids, all_processes, read_process
from probe_agent.recorder.ring.folder import check_owner, is_held, user_folder
from probe_agent.untrusted_files import folder_opened

from .target import Target, read_identity

__all__ = ["Ended", "Scan"]

_USER_FOLDER = re.compile(r"probe-(\d+)")
#: With a number behind the dot: what a detach has kept.
_TARGET_FOLDER = re.compile(r"\d+-\d+(\.\d+)?")


#: An ended target is kept once its folder has been as it is for so long.
_SETTLED_S = 2.0
#: Device, inode and last change of a folder -> the ended target in it.
Ended = dict[tuple[int, int, int], Target]


class Scan:
    """One look at the host; what it has read is kept as long as the object, and of ended targets in `ended`."""

    def __init__(self, bases: tuple[str, ...], ended: Ended | None = None) -> None:
        self._bases = bases
        self._known = ended or {}
        #: The ended targets of this look, for the next one.
        self.ended: Ended = {}
        self._seen: set[tuple[int, int]] = set()

    @cached_property
    def processes(self) -> list[Process]:
        return list(all_processes())

    def targets(self, views: Sequence[str]) -> Iterator[Target]:
        """Targets below our own root, then those below the roots in `views`."""
        for prefix in ("", *views):
            for base in self._bases:
                yield from self._targets_in(prefix + base)

    @property
    def other_views(self) -> tuple[str, ...]:
        """The root of one process for each file system other than ours."""
        found = []
        seen = {Process(os.getpid()).view}
        for pid in all_pids():
            process = Process(pid)
            try:
                view = process.view
            except OSError:
                continue  # it has ended, or belongs to another user
            if view not in seen:
                seen.add(view)
                found.append(process.proc + "/root")
        return tuple(found)

    def _targets_in(self, base: str) -> Iterator[Target]:
        for uid in self._users(base):
            parent = user_folder(base, uid)
            try:
                check_owner(parent, uid)
                with folder_opened(parent) as opened:
                    names = os.listdir(opened)
            except OSError:
                continue  # no folder, or one that another user prepared
            for name in names:
                if _TARGET_FOLDER.fullmatch(name):
                    yield from self.target(os.path.join(parent, name), uid)

    def _users(self, base: str) -> list[int]:
        if os.geteuid() != 0:
            return [os.geteuid()]
        try:
            found = [_USER_FOLDER.fullmatch(name) for name in os.listdir(base)]
        except OSError:
            return []
        return [int(match[1]) for match in found if match]

    def target(self, folder: str, uid: int) -> Iterator[Target]:
        """The target in `folder`, if there is one of that user."""
        try:
            status = os.lstat(folder)
        except OSError:
            return  # detached since
        if (status.st_dev, status.st_ino) in self._seen or status.st_uid != uid:
            return
        self._seen.add((status.st_dev, status.st_ino))
        place = (status.st_dev, status.st_ino, status.st_mtime_ns)
        known = self._known.get(place)
        if known is not None and known.folder == folder:
            self.ended[place] = known
            yield known
            return
        identity = read_identity(folder, uid)
        if identity is None:
            return
        try:
            held = is_held(folder)
        except OSError:
            return  # detached since
        process = self._process(identity, held)
        has_ended = process is None and not held and time() - status.st_mtime > _SETTLED_S
        if process is not None and process.is_alive and not held:
            process = None  # it runs another program since (exec)
        found = Target(folder, identity, process, process is None and held)
        if has_ended:
            self.ended[place] = found
        yield found

    def _process(self, identity: dict[str, int], held: bool) -> Process | None:
        """Return the process behind target.json, whose PID may be one of another PID namespace; its start time is not.

        For a target that has ended, other processes are not searched."""
        ticks = identity["start_ticks"]
        for pid in {identity["host_pid"], identity["pid"]}:
            process = read_process(pid)
            if process is not None and process.start_ticks == ticks:
                return process
        for process in self.processes if held else ():
            try:
                if process.start_ticks == ticks and process.inner_pid == identity["pid"]:
                    return process
            except OSError:
                continue  # it has ended
        return None
