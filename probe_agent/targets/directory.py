"""Targets of this host, and which of them a request means: this user's targets, or everybody's when root asks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import monotonic

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.procfs import Process, read_process
from probe_agent.recorder.ring.folder import BASES

from .scan import Ended, Scan
from .target import Target, without_recorder

__all__ = ["ArchiveDirectory", "TargetDirectory"]

#: How long a request that names no target may miss one of a container that has just started: other mount namespaces
#: are remembered for this long.
_VIEWS_S = 2.0
_MAX_NAMED = 16


class TargetDirectory:
    """The targets that a user of this host may ask."""

    def __init__(self, bases: Sequence[str] = BASES) -> None:
        self._bases = tuple(bases)
        self._views: tuple[str, ...] = ()
        self._views_until = 0.0
        #: Of the last look; it is replaced, never changed: several threads look at the same time.
        self._ended: Ended = {}

    def targets(self) -> list[Target]:
        """Return all targets, those that have ended included, by rank and PID. One that has ended is the same object
        each time, as long as its folder does not change."""
        self._views_until = 0.0
        return self.seen()

    def seen(self) -> list[Target]:
        """Return the same; targets of a container that has just started may be missing."""
        scan = Scan(self._bases, self._ended)
        if monotonic() > self._views_until:
            self._views, self._views_until = scan.other_views, monotonic() + _VIEWS_S
        found = sorted(scan.targets(self._views), key=_by_rank)
        self._ended = scan.ended
        return found

    def candidates(self) -> list[Process]:
        """Return the Python processes without a recorder that we may attach to; not the workers of a target, which it
        has started itself and not by way of another program."""
        scan = Scan(self._bases)
        taken = {target.pid for target in scan.targets(scan.other_views) if target.is_alive}
        for process in sorted(scan.processes, key=lambda process: process.start_ticks):
            if process.parent_pid in taken and _may_attach(process):
                taken.add(process.pid)
        taken.add(os.getpid())
        return [process for process in scan.processes if process.pid not in taken and _may_attach(process)]

    @staticmethod
    def left_out(
        targets: Sequence[Target], pid: int | None = None, rank: int | None = None, job: str | None = None
    ) -> str:
        """Return a note on the ended targets that `choose` leaves out beside living ones; empty if there are none."""
        if job is not None:
            targets = [target for target in targets if target.job.startswith(job)]
        ended = [target for target in targets if not target.is_alive and rank in (None, target.rank)]
        if pid is not None or not ended or not any(t.is_alive for t in targets if rank in (None, t.rank)):
            return ""
        return f"without {_listed(list(map(str, ended)))}: ended; a PID asks for what it left"

    def choose(self, pid: int | None = None, rank: int | None = None, job: str | None = None) -> list[Target]:
        """Return the targets with this `pid`, or with this `rank` in the job whose name begins with `job`; all living
        ones if nothing is given.

        Never empty: raises NoAnswer. Raises BadRequest if several jobs fit a rank or `job`.
        """
        try:
            return self.among(self.seen(), pid, rank, job)
        except NoAnswer:
            return self.among(self.targets(), pid, rank, job)  # it may be in a container that has just started

    @staticmethod
    def among(targets: list[Target], pid: int | None, rank: int | None, job: str | None = None) -> list[Target]:
        """Return those of `targets` that `choose` would return."""
        if pid is not None:
            return _with_pid(targets, pid)
        chosen = targets if job is None else _of_job(targets, job)
        if rank is not None:
            chosen = [target for target in chosen if target.rank == rank]
        if not chosen and rank is not None:
            of_job = "" if job is None else f" in job {job}"
            raise NoAnswer(f"no target of this host has rank {rank}{of_job}", _known(targets))
        if not chosen:
            raise NoAnswer("this host has no target", "attach to a job first: probe PID inject")
        living = [target for target in chosen if target.is_alive]
        if rank is not None and len(jobs := {target.job for target in living}) > 1:
            raise BadRequest(
                f"{len(jobs)} jobs have a rank {rank} here",
                f"name the job, as in host:port/JOB/{rank} or --job JOB; {_known(living)}",
            )
        if not living and job is None and len(chosen) > 1:
            # They may be of several jobs, whose rows must not be summed.
            raise NoAnswer(
                f"no living target{'' if rank is None else f' has rank {rank}'}, and {len(chosen)} ended: "
                + _listed(list(map(str, chosen))),
                "name one by its PID to query what it left; several that are named count as one database",
            )
        return living or chosen

    def choose_any(self, pid: int | None = None, rank: int | None = None, job: str | None = None) -> list[Target]:
        """Return the same, or the Python process `pid` without a recorder: it has no tables, but stacks."""
        try:
            return self.choose(pid, rank, job)
        except NoAnswer:
            process = read_process(pid) if pid is not None else None
            if process is None or not _may_attach(process):
                raise
            return [without_recorder(process)]

    def find(self, pid: int | None = None, rank: int | None = None, job: str | None = None) -> Target:
        """Return the one target that `choose` would return. Raises BadRequest if there are several."""
        return _the_one(self.choose(pid, rank, job))

    def find_any(self, pid: int | None = None, rank: int | None = None, job: str | None = None) -> Target:
        """Return the same, or the Python process `pid` without a recorder."""
        return _the_one(self.choose_any(pid, rank, job))


class ArchiveDirectory(TargetDirectory):
    """The folder of one target, or a copy of it, as if it were the only one on this host.

    If the target still runs, its recorder can be asked as well.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(())
        self._folder = folder

    def candidates(self) -> list[Process]:
        """Return nothing: an archive has no processes."""
        return []

    def seen(self) -> list[Target]:
        try:
            found = list(Scan(()).target(self._folder, os.stat(self._folder).st_uid))
        except OSError as error:
            raise NoAnswer(
                f"cannot read {self._folder}: {error.strerror}", "name a folder that exists and that you may read"
            ) from None
        if not found:
            raise NoAnswer(f"{self._folder} holds no target: cannot read its target.json", "copy the whole folder")
        return found


def _by_rank(target: Target) -> tuple[bool, int, int]:
    """Sort unknown ranks last."""
    return target.rank is None, target.rank or 0, target.pid


def _with_pid(targets: list[Target], pid: int) -> list[Target]:
    chosen = [target for target in targets if target.pid == pid]
    if not chosen and read_process(pid) is None:
        raise NoAnswer(f"no such process on this host: pid {pid}", _known(targets))
    if not chosen:
        raise NoAnswer(f"pid {pid} has no recorder in it", f"attach first: probe {pid} inject")
    return [target for target in chosen if target.is_alive] or chosen


def _of_job(targets: list[Target], job: str) -> list[Target]:
    """Return the ranks of the job whose name begins with `job`: of one that runs, if there is one."""
    found = [target for target in targets if target.job.startswith(job)] if job else []
    living = {target.job for target in found if target.is_alive}
    names = sorted(living or {target.job for target in found})
    if job in names:
        names = [job]
    if not names:
        raise NoAnswer(f"no target of this host belongs to a job {job}", _known(targets))
    if len(names) > 1:
        raise BadRequest(
            f"the names of {len(names)} jobs begin with {job}: {_listed(names)}", "give more letters of the name"
        )
    return [target for target in found if target.job == names[0]]


def _the_one(chosen: list[Target]) -> Target:
    if len(chosen) > 1:
        raise BadRequest(
            f"{len(chosen)} targets fit",
            "name one (host:port/RANK, host:port/JOB/RANK; pid=, rank= and job= over HTTP), or ask each with --all or"
            " --rank 0,4-7; " + _known(chosen),
        )
    return chosen[0]


def _may_attach(process: Process) -> bool:
    try:
        return process.is_alive and os.geteuid() in (0, process.uid) and process.is_python
    except OSError:
        return False  # it has ended, or belongs to another user


def _known(targets: list[Target]) -> str:
    if not targets:
        return "attach to a job first: probe PID inject"
    several = len({target.job for target in targets}) > 1
    return "targets: " + _listed([f"{t} of job {t.job}" if several and t.job else str(t) for t in targets])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")
