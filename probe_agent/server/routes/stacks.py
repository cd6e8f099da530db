"""Stacks of a target, with the source line of each frame."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from probe_agent.server.dependencies import AnyTarget
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import take_stacks, with_source
from probe_agent.wire import Backtrace

__all__ = ["read"]

read = APIRouter(responses=PROBLEMS)


@read.get("/v1/backtrace")
def backtrace(
    target: AnyTarget,
    all: Annotated[bool, Query(description="every thread, not only the main and the training thread")] = False,
    outside: Annotated[bool, Query(description="read them from outside at once, without the recorder")] = False,
) -> Backtrace:
    """The stacks of the target's threads, innermost frame first. When its GIL is held, or `pid` is a Python process
    without a recorder, they are read from outside."""
    taken = with_source(target, take_stacks(target, all_threads=all, outside=outside))
    return replace(taken, rank=target.rank)
