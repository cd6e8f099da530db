"""Jobs: telling them apart, so that a command about the ranks of one job never mixes two.

Pure functions on what host servers have told of their targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.wire import TargetInfo
from probe_cli.endpoint import Archive, Endpoint, LocalProcess, Report, TcpServer, ThisHost, UnixServer
from probe_cli.text import ranks_text

__all__ = ["NoSuchJob", "in_job", "jobs_of", "one_job", "same_job"]

#: At most this many are listed.
MAX_LISTED = 16
#: Characters of a command line that are shown.
MAX_COMMAND = 80


class NoSuchJob(NoAnswer):
    """This host has no job of that name; another host may have it."""


def same_job(one: TargetInfo, other: TargetInfo) -> bool:
    """Whether both are ranks of one job: by its name, or by where the ranks meet while one does not know that yet."""
    if one.job and other.job:
        return one.job == other.job
    meets = one.store != "" and one.alive and other.alive
    return meets and 1 < one.world_size == other.world_size and one.store == other.store


def jobs_of(targets: Iterable[TargetInfo]) -> list[list[TargetInfo]]:
    """Targets with a rank, grouped by job; named jobs come before those whose names are not known yet."""
    jobs: list[list[TargetInfo]] = []
    for target in sorted(targets, key=lambda target: (not target.job, target.job)):
        if target.rank is None:
            continue
        own = next((job for job in jobs if same_job(job[0], target) or _are_nameless(job[0], target)), None)
        if own is None:
            jobs.append([target])
        else:
            own.append(target)
    return jobs


def in_job(targets: Sequence[TargetInfo], name: str, at: Endpoint) -> tuple[TargetInfo, ...]:
    """Return the ranks of the job whose name begins with `name`, of a living one if possible. Raises NoSuchJob, or
    BadRequest if there are several."""
    found = [target for target in targets if target.job.startswith(name)]
    names = {target.job for target in found if target.alive} or {target.job for target in found}
    if name in names:
        names = {name}
    if not names:
        known = sorted({target.job for target in targets if target.alive} - {""})
        there = f"use one of: {', '.join(known[:MAX_LISTED])}" if known else "list the targets: probe list"
        raise NoSuchJob(f"{at}: no job's name begins with {name}", there)
    if len(names) > 1:
        raise BadRequest(
            f"{at}: the names of {len(names)} jobs begin with {name}: {', '.join(sorted(names)[:MAX_LISTED])}",
            "give more letters of the name",
        )
    return tuple(target for target in found if target.job in names)


def one_job(targets: Iterable[TargetInfo], named: Sequence[Endpoint]) -> None:
    """Raise BadRequest, with a list, if `targets` belong to several jobs. Targets named one by one may be single
    processes, each a job of its own."""
    jobs = jobs_of(targets)
    if len(jobs) < 2:
        return
    if named and all(map(_picks, named)) and (all(job[0].world_size == 1 for job in jobs) or _may_be_one(jobs)):
        return
    at = named[0] if len(named) == 1 and isinstance(named[0], TcpServer | UnixServer) else None
    listed = "".join(f"\n  {_line(job)}" for job in jobs[:MAX_LISTED]) + ("\n  …" if jobs[MAX_LISTED:] else "")
    name = next((job[0].job for job in jobs if job[0].job), "")
    hint = f"name one: --job {name}" if name else ""
    if hint and at is not None and not isinstance(at, ThisHost):
        hint += f", or the endpoint {replace(at, rank=None, pid=None, job=name)}"
    where = "these endpoints lead to" if at is None and named and not _are_here(named) else "there are"
    raise BadRequest(
        f"{where} {len(jobs)} jobs{f' at {at}' if at else ''}, and this command is about the ranks of one:{listed}",
        hint or "wait a moment until their names are known, or name the PIDs of one",
    )


def _may_be_one(jobs: Sequence[Sequence[TargetInfo]]) -> bool:
    """Return whether these may be the ranks of one job, some of which do not know its name: they have not joined it
    yet, or have left it (`destroy_process_group`)."""
    targets = [target for job in jobs for target in job]
    ranks = {target.rank for target in targets}
    names = {target.job for target in targets} - {""}
    return len(names) < 2 and len({target.world_size for target in targets}) == 1 and len(ranks) == len(targets)


def _are_nameless(one: TargetInfo, other: TargetInfo) -> bool:
    """Whether nothing tells them apart: neither has a job or a store."""
    nothing = not one.job and not other.job and not one.store and not other.store
    return nothing and 1 < one.world_size == other.world_size


def _are_here(named: Sequence[Endpoint]) -> bool:
    return all(isinstance(endpoint, LocalProcess | ThisHost) for endpoint in named)


def _picks(endpoint: Endpoint) -> bool:
    """Whether the endpoint names one target or job."""
    return isinstance(endpoint, LocalProcess | Archive | Report) or bool(endpoint.selector)


def _line(job: Sequence[TargetInfo]) -> str:
    ranks = {target.rank for target in job if target.rank is not None}
    steps = [target.step for target in job if target.step is not None]
    command = " ".join(" ".join(job[0].command).split())  # on one line, also a script behind -c
    return (
        f"{job[0].job or '(name not known yet)'}  rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)} of"
        f" {job[0].world_size}, {f'step {max(steps)}' if steps else 'no step yet'},"
        f" {command if len(command) <= MAX_COMMAND else command[: MAX_COMMAND - 1] + '…'}"
    )
