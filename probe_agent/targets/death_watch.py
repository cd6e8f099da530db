"""Deaths of the targets of this host, written down as they happen: time, exit code or signal.

A thread of the host server. The kernel wakes it (pidfd) when a target dies, and tells the exit code: Linux 6.15 and
later always, earlier ones only until the parent has reaped the process. Every 2 s it looks for new targets, about 1 ms,
and every 10 minutes it removes what targets of its own user left that have been dead for too long. Nothing is asked of
a target.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from time import monotonic, time

from probe_agent.recorder.config import Settings
from probe_agent.recorder.guest.end_mark import exit_code_of, mark_gone
from probe_agent.recorder.ring.folder import BASES, prune, user_folder
from probe_agent.untrusted_files import as_user, folder_opened

from .directory import TargetDirectory
from .target import Target

__all__ = ["watch_deaths"]

_LOOK_S = 2.0
_PRUNE_S = 600.0
#: A witness that knows the exit code may come later than one that does not.
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class _Watched:
    pid: int
    #: Its folder, open: after its death the path may lead nowhere, as into a container.
    folder: int
    rights: tuple[int, int, list[int]]


@contextmanager
def watch_deaths(directory: TargetDirectory) -> Iterator[None]:
    """Watch inside the block."""
    stop, stopped = os.pipe2(os.O_CLOEXEC)
    thread = Thread(target=_Watch(directory, stop).run, name="deaths", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(stopped)
        thread.join(_LOOK_S)


class _Watch:
    def __init__(self, directory: TargetDirectory, stop: int) -> None:
        self._directory = directory
        self._stop = stop
        self._poll = select.poll()
        self._poll.register(stop, select.POLLIN | select.POLLHUP)
        self._watched: dict[int, _Watched] = {}
        self._known: set[tuple[int, int]] = set()
        self._pruned = 0.0
        #: Deaths without an exit code, which another witness may know: when, and of whom.
        self._open: list[tuple[float, _Watched]] = []

    def run(self) -> None:
        look_at = 0.0
        while True:
            if monotonic() >= look_at:
                self._find()
                look_at = monotonic() + _LOOK_S
            ready = self._poll.poll(max(0.0, look_at - monotonic()) * 1000)
            for descriptor, _ in ready:
                if descriptor == self._stop:
                    return self._close()
                self._died(descriptor)

    def _find(self) -> None:
        for died, watched in [entry for entry in self._open if time() - entry[0] > _PATIENCE_S]:
            self._open.remove((died, watched))
            self._write(watched, died, None)
        living = set()
        for target in self._directory.seen():
            if target.process is not None and target.is_alive and target.has_recorder:
                key = (target.pid, target.process.start_ticks)
                living.add(key)
                if key not in self._known and self._meet(target):
                    self._known.add(key)
        self._known &= living
        if monotonic() - self._pruned > _PRUNE_S or not self._pruned:
            self._pruned = monotonic()
            self._prune()

    def _meet(self, target: Target) -> bool:
        assert target.process is not None
        try:
            descriptor = os.pidfd_open(target.pid)
        except OSError:
            return False  # it has just ended, or the kernel is an old one
        try:
            rights = target.process.file_rights
            with folder_opened(target.folder) as opened:
                folder = os.dup(opened)
        except OSError:
            os.close(descriptor)
            return False
        self._watched[descriptor] = _Watched(target.pid, folder, rights)
        self._poll.register(descriptor, select.POLLIN)
        return True

    def _died(self, descriptor: int) -> None:
        died = time()
        watched = self._watched.pop(descriptor)
        code = exit_code_of(watched.pid, descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        if code is None:
            self._open.append((died, watched))
        else:
            self._write(watched, died, code)

    def _write(self, watched: _Watched, died: float, code: int | None) -> None:
        try:
            # A folder that is gone, a user's rights that we may not take: then nobody hears of it.
            with suppress(OSError), as_user(*watched.rights):
                if os.fstat(watched.folder).st_nlink:
                    mark_gone(f"/proc/self/fd/{watched.folder}", died, code, "the host server")
        finally:
            os.close(watched.folder)

    def _prune(self) -> None:
        for base in BASES:
            with suppress(OSError):  # no folder
                prune(user_folder(base, os.getuid()), *Settings().kept_after_death)

    def _close(self) -> None:
        for descriptor, watched in self._watched.items():
            os.close(descriptor)
            os.close(watched.folder)
        for _, watched in self._open:
            os.close(watched.folder)
        os.close(self._stop)
