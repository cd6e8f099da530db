"""Which targets a request is about, and what the endpoints share.

Runs on the server's event loop; looking at the host takes a thread of its pool, and each time that costs half a
millisecond: so one look serves all that want one.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Depends, Query, Request
from fastapi.concurrency import run_in_threadpool

from probe_agent.errors import Forbidden, NoAnswer
from probe_agent.sql.query_engine import QueryEngine
from probe_agent.targets import ArchiveDirectory, Target, TargetDirectory

from .access.roles import Caller

__all__ = ["AnyTarget", "AnyTargets", "ChosenTarget", "ChosenTargets", "Directory", "Engine", "LeftOut"]

Pid = Annotated[int | None, Query(description="the target with this process id")]
Rank = Annotated[int | None, Query(description="the target with this rank")]
Job = Annotated[str | None, Query(description="the job whose name begins with this: its rank, or all its ranks")]

Folder = Annotated[
    str | None, Query(description="the ended target that left this folder, instead of this host's targets")
]


async def _directory(request: Request, folder: Folder = None) -> TargetDirectory:
    if folder is not None:
        caller: Caller = request.state.caller
        if not caller.is_owner:
            raise Forbidden("a folder can be named on the server's unix socket only", "copy it, and ask on your host")
        return ArchiveDirectory(folder)
    directory: TargetDirectory = request.app.state.directory
    return directory


async def _engine(request: Request) -> QueryEngine:
    engine: QueryEngine = request.app.state.engine
    return engine


Directory = Annotated[TargetDirectory, Depends(_directory)]
Engine = Annotated[QueryEngine, Depends(_engine)]


def _seen(directory: Directory) -> list[Target]:
    return directory.seen()


class _Which(NamedTuple):
    pid: int | None
    rank: int | None
    job: str | None


def _which(pid: Pid = None, rank: Rank = None, job: Job = None) -> _Which:
    return _Which(pid, rank, job)


#: One look at the host, whoever wants it of those below.
Seen = Annotated[list[Target], Depends(_seen)]
#: What the question says of whom it means.
Which = Annotated[_Which, Depends(_which)]


async def _targets(directory: Directory, seen: Seen, which: Which) -> list[Target]:
    try:
        return directory.among(seen, *which)
    except NoAnswer:
        return await run_in_threadpool(directory.choose, *which)


def _target(directory: Directory, which: Which) -> Target:
    return directory.find(*which)


async def _any_targets(directory: Directory, seen: Seen, which: Which) -> list[Target]:
    try:
        return directory.among(seen, *which)
    except NoAnswer:
        return await run_in_threadpool(directory.choose_any, *which)


def _any_target(directory: Directory, which: Which) -> Target:
    return directory.find_any(*which)


async def _left_out(directory: Directory, seen: Seen, which: Which) -> tuple[str, ...]:
    said = directory.left_out(seen, *which)
    return (said,) if said else ()


#: Those that `pid`, or `rank` and `job` mean, or all living ones; at least one.
ChosenTargets = Annotated[list[Target], Depends(_targets)]
#: The one that these mean, or the only one.
ChosenTarget = Annotated[Target, Depends(_target)]
#: The same two, but `pid` may also mean a process without a recorder.
AnyTargets = Annotated[list[Target], Depends(_any_targets)]
AnyTarget = Annotated[Target, Depends(_any_target)]
#: Notes on those that these leave out.
LeftOut = Annotated[tuple[str, ...], Depends(_left_out)]
