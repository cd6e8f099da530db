"""Stacks of a target, with the source line of each frame."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request

from probe_agent.errors import Forbidden
from probe_agent.server.access.audit import audited
from probe_agent.server.dependencies import AnyTarget
from probe_agent.targets import Target, stacks_of_workers, take_stacks, take_tasks, with_native, with_source
from probe_agent.wire import Backtrace, StacksRequest

__all__ = ["control", "read"]

read = APIRouter()
control = APIRouter()


@read.get("/v1/backtrace")
def backtrace(
    target: AnyTarget,
    all: Annotated[bool, Query(description="every thread, not only the main and the training thread")] = False,
    outside: Annotated[bool, Query(description="read them from outside at once, without the recorder")] = False,
    tasks: Annotated[bool, Query(description="with asyncio tasks and greenlets")] = False,
    workers: Annotated[bool, Query(description="with the stacks of its DataLoader workers")] = False,
) -> Backtrace:
    """The stacks of the target's threads, innermost frame first. When its GIL is held, or `pid` is a Python process
    without a recorder, they are read from outside."""
    return _taken(target, StacksRequest(all=all, outside=outside, tasks=tasks, workers=workers))


@control.post("/v1/backtrace")
def inspect(request: Request, target: AnyTarget, wanted: StacksRequest) -> Backtrace:
    """The same with C and C++ frames, for which the target stands still for some tenths of a second, or with local
    variables."""
    if target.identity.get("readonly"):
        raise Forbidden(
            f"{target} is only to be read (PROBE_READONLY): neither C frames nor local variables are shown",
            "ask for its stacks without --native and --locals",
        )
    with audited(request, target, "backtrace", repr(wanted)):
        return _taken(target, wanted)


def _taken(target: Target, wanted: StacksRequest) -> Backtrace:
    taken = take_stacks(target, all_threads=wanted.all, outside=wanted.outside, with_locals=wanted.locals)
    if wanted.native:
        taken = with_native(target, taken, all_threads=wanted.all)
    if wanted.tasks:
        tasks, notes = take_tasks(target)
        taken = replace(taken, tasks=tasks, notes=(*taken.notes, *notes))
    if wanted.workers:
        workers, notes = stacks_of_workers(target)
        taken = replace(taken, workers=workers, notes=(*taken.notes, *notes))
    return replace(with_source(target, taken), rank=target.rank)
