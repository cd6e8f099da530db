"""Which targets a request is about, and what the endpoints share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request

from probe_agent.sql import QueryEngine
from probe_agent.target import Target, TargetDirectory

__all__ = ["AnyTarget", "AnyTargets", "ChosenTarget", "ChosenTargets", "Directory", "Engine", "LeftOut"]

Pid = Annotated[int | None, Query(description="the target with this process id")]
Rank = Annotated[int | None, Query(description="the target with this rank")]


def _directory(request: Request) -> TargetDirectory:
    directory: TargetDirectory = request.app.state.directory
    return directory


def _engine(request: Request) -> QueryEngine:
    engine: QueryEngine = request.app.state.engine
    return engine


Directory = Annotated[TargetDirectory, Depends(_directory)]
Engine = Annotated[QueryEngine, Depends(_engine)]


def _seen(directory: Directory) -> list[Target]:
    return directory.seen()


#: One look at the host, whoever wants it of those below.
Seen = Annotated[list[Target], Depends(_seen)]


def _targets(directory: Directory, seen: Seen, pid: Pid = None, rank: Rank = None) -> list[Target]:
    return directory.choose(pid, rank, seen)


def _target(directory: Directory, pid: Pid = None, rank: Rank = None) -> Target:
    return directory.find(pid, rank)


def _any_targets(directory: Directory, seen: Seen, pid: Pid = None, rank: Rank = None) -> list[Target]:
    return directory.choose_any(pid, rank, seen)


def _any_target(directory: Directory, pid: Pid = None, rank: Rank = None) -> Target:
    return directory.find_any(pid, rank)


def _left_out(directory: Directory, seen: Seen, pid: Pid = None, rank: Rank = None) -> tuple[str, ...]:
    said = directory.left_out(seen, pid, rank)
    return (said,) if said else ()


#: Those that `pid` or `rank` mean, or all living ones; at least one.
ChosenTargets = Annotated[list[Target], Depends(_targets)]
#: The one that `pid` or `rank` mean, or the only one.
ChosenTarget = Annotated[Target, Depends(_target)]
#: The same two, but `pid` may also mean a process without a recorder.
AnyTargets = Annotated[list[Target], Depends(_any_targets)]
AnyTarget = Annotated[Target, Depends(_any_target)]
#: Notes on those that these leave out.
LeftOut = Annotated[tuple[str, ...], Depends(_left_out)]
