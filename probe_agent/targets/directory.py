"""Finds the targets of this host: this user's, or everybody's when root asks.

Runs on every request, a fraction of a millisecond. Targets in other mount namespaces (containers) are looked for
through /proc/PID/root of one process in each; which these are takes 2 ms for 100 processes, so it is remembered for a
short while.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from time import monotonic

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.procfs import Process, all_pids, all_processes, read_process
from probe_agent.recorder.ring.folder import BASES, check_owner, is_held, user_folder
from probe_agent.untrusted_files import folder_opened

from .target import Target, read_identity, without_recorder

__all__ = ["Scan", "TargetDirectory"]

#: How long a container that has just started may stay unseen by a question that names no target of it.
_VIEWS_S = 2.0
_USER_FOLDER = re.compile(r"probe-(\d+)")
#: With a number behind the dot: what a detach has kept.
_TARGET_FOLDER = re.compile(r"\d+-\d+(\.\d+)?")


class TargetDirectory:
    """The targets that a user of this host may ask."""

    def __init__(self, bases: Sequence[str] = BASES) -> None:
        self._bases = tuple(bases)
        self._views: tuple[str, ...] = ()
        self._views_until = 0.0

    def targets(self) -> list[Target]:
        """All of them, dead ones included, by rank and process id."""
        self._views_until = 0.0
        return self.seen()

    def candidates(self) -> list[Process]:
        """Python processes we may attach to that have no recorder; workers of a target are not worth it."""
        scan = Scan(self._bases)
        taken = {target.pid for target in scan.targets(scan.other_views) if target.is_alive}
        for process in sorted(scan.processes, key=lambda process: process.start_ticks):
            if process.parent_pid in taken:
                taken.add(process.pid)
        taken.add(os.getpid())
        return [process for process in scan.processes if process.pid not in taken and _may_attach(process)]

    def seen(self) -> list[Target]:
        """The same; those of a container that has just started may be missing."""
        scan = Scan(self._bases)
        if monotonic() > self._views_until:
            self._views, self._views_until = scan.other_views, monotonic() + _VIEWS_S
        return sorted(scan.targets(self._views), key=_by_rank)

    @staticmethod
    def left_out(
        targets: Sequence[Target], pid: int | None = None, rank: int | None = None, job: str | None = None
    ) -> str:
        """What to say of the dead among `targets` that `choose` leaves out beside the living; empty if none."""
        if job is not None:
            targets = [target for target in targets if target.job.startswith(job)]
        dead = [target for target in targets if not target.is_alive and rank in (None, target.rank)]
        if pid is not None or not dead or not any(t.is_alive for t in targets if rank in (None, t.rank)):
            return ""
        names = ", ".join(map(str, dead[:16])) + (", …" if len(dead) > 16 else "")
        return f"without {names}: ended; a PID asks for what it left"

    def choose(self, pid: int | None = None, rank: int | None = None, job: str | None = None) -> list[Target]:
        """The targets meant by `pid`, or by `rank` and how the name of a job begins; all living ones when nothing is
        given. Never empty: NoAnswer. Raises BadRequest where several jobs are meant by a rank, or by `job`."""
        try:
            return self.among(self.seen(), pid, rank, job)
        except NoAnswer:
            return self.among(self.targets(), pid, rank, job)  # it may be in a container that we have not seen yet

    @staticmethod
    def among(targets: list[Target], pid: int | None, rank: int | None, job: str | None = None) -> list[Target]:
        """Those of `targets` that `choose` would take."""
        if pid is not None:
            chosen = [target for target in targets if target.pid == pid]
            if not chosen:
                raise _no_recorder(pid, targets)
        else:
            chosen = targets if job is None else _of_job(targets, job)
            if rank is not None:
                chosen = [target for target in chosen if target.rank == rank]
            if not chosen and rank is not None:
                of_job = "" if job is None else f" in job {job}"
                raise NoAnswer(f"no target of this host has rank {rank}{of_job}", _known(targets))
            if not chosen:
                raise NoAnswer("there is no target on this host", "attach to a training first: probe PID inject")
        living = [target for target in chosen if target.is_alive]
        if rank is not None and len(jobs := {target.job for target in living}) > 1:
            raise BadRequest(
                f"{len(jobs)} jobs have a rank {rank} here",
                f"name the job, as in host:port/JOB/{rank} or --job JOB: {_known(living)}",
            )
        if not living and pid is None and job is None and len(chosen) > 1:
            # They may be of several jobs, whose rows must not be summed.
            raise NoAnswer(
                f"no living target{'' if rank is None else f' has rank {rank}'}, and {len(chosen)} ended: "
                + ", ".join(map(str, chosen[:16])),
                "ask for what one left by its PID; several that are named so count as one database",
            )
        return living or chosen

    def choose_any(self, pid: int | None = None, rank: int | None = None, job: str | None = None) -> list[Target]:
        """The same, or the Python process `pid` without a recorder: it has no tables, but stacks."""
        try:
            return self.choose(pid, rank, job)
        except NoAnswer:
            process = read_process(pid) if pid is not None else None
            if process is None or not _may_attach(process):
                raise
            return [without_recorder(process)]

    def find(self, pid: int | None = None, rank: int | None = None, job: str | None = None) -> Target:
        """The one target meant. Raises BadRequest when there are several."""
        return _the_one(self.choose(pid, rank, job))

    def find_any(self, pid: int | None = None, rank: int | None = None, job: str | None = None) -> Target:
        """The same, or the Python process `pid` without a recorder."""
        return _the_one(self.choose_any(pid, rank, job))


class Scan:
    """One look at the host; what it read is kept until it is dropped."""

    def __init__(self, bases: tuple[str, ...]) -> None:
        self._bases = bases
        self._seen: set[tuple[int, int]] = set()

    @cached_property
    def processes(self) -> list[Process]:
        return list(all_processes())

    def targets(self, views: Sequence[str]) -> Iterator[Target]:
        """Those below our own root, then those below the roots in `views`."""
        for prefix in ("", *views):
            for base in self._bases:
                yield from self._targets_in(prefix + base)

    @property
    def other_views(self) -> tuple[str, ...]:
        """The root of one process for each file system that is not ours."""
        found = []
        seen = {Process(os.getpid(), "", 0).view}
        for pid in all_pids():
            process = Process(pid, "", 0)
            try:
                view = process.view
            except OSError:
                continue  # gone, or somebody else's
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
                continue  # nobody there, or a folder that somebody else prepared
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
        """The one in `folder`, if there is one of that user."""
        try:
            status = os.lstat(folder)
        except OSError:
            return  # detached meanwhile
        if (status.st_dev, status.st_ino) in self._seen or status.st_uid != uid:
            return
        self._seen.add((status.st_dev, status.st_ino))
        identity = read_identity(folder, uid)
        if identity is None:
            return
        try:
            held = is_held(folder)
        except OSError:
            return  # detached meanwhile
        process = self._process(identity, held)
        if process is not None and process.is_alive and not held:
            process = None  # it runs another program by now (exec)
        yield Target(folder, identity, process, process is None and held)

    def _process(self, identity: dict[str, int], held: bool) -> Process | None:
        """The process behind target.json: its number may be one of another pid namespace, its start is not. For one
        that lives no more, all processes are not looked at."""
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
                continue  # ended meanwhile
        return None


def _by_rank(target: Target) -> tuple[bool, int, int]:
    """Those whose rank is not known come last."""
    return target.rank is None, target.rank or 0, target.pid


def _of_job(targets: list[Target], job: str) -> list[Target]:
    """The ranks of the job whose name begins so: of one that lives, if there is one."""
    found = [target for target in targets if target.job.startswith(job)] if job else []
    living = {target.job for target in found if target.is_alive}
    names = sorted(living or {target.job for target in found})
    if job in names:
        names = [job]
    if not names:
        raise NoAnswer(f"no target of this host is of a job {job}", _known(targets))
    if len(names) > 1:
        raise BadRequest(f"the names of {len(names)} jobs begin with {job}: {', '.join(names[:16])}", "name more of it")
    return [target for target in found if target.job == names[0]]


def _the_one(chosen: list[Target]) -> Target:
    if len(chosen) > 1:
        raise BadRequest(
            f"{len(chosen)} targets fit",
            "name one (host:port/RANK, host:port/JOB/RANK; pid=, rank= and job= over HTTP), or put it to each with"
            " --all or --rank 0,4-7; " + _known(chosen),
        )
    return chosen[0]


def _may_attach(process: Process) -> bool:
    try:
        return process.is_alive and os.geteuid() in (0, process.uid) and process.is_python
    except OSError:
        return False  # ended meanwhile, or not ours


def _no_recorder(pid: int, targets: list[Target]) -> NoAnswer:
    if read_process(pid) is None:
        return NoAnswer(f"pid {pid}: there is no such process on this host", _known(targets))
    return NoAnswer(f"pid {pid} has no recorder in it", f"attach first: probe {pid} inject")


def _known(targets: list[Target]) -> str:
    if not targets:
        return "there is no target on this host"
    several = len({target.job for target in targets}) > 1
    named = [f"{target} of job {target.job}" if several and target.job else str(target) for target in targets[:16]]
    return "targets: " + ", ".join(named) + (", …" if len(targets) > 16 else "")
