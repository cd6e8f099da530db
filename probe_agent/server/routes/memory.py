"""Leaks by line, traced in a target for a bounded time, and snapshots of its allocator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from probe_agent.server.access.audit import audited_lines
from probe_agent.server.dependencies import ChosenTarget
from probe_agent.server.ndjson import NdjsonResponse
from probe_agent.targets import Target, source_line, stream
from probe_agent.wire import LeaksLine, LeaksRequest, SnapshotLine, SnapshotRequest

__all__ = ["control"]

control = APIRouter()

Line = dict[str, Any]  # as the target answers it


@control.post("/v1/memory/leaks", status_code=200, response_model=LeaksLine, response_class=NdjsonResponse)
async def leaks(request: Request, target: ChosenTarget, wanted: LeaksRequest) -> Response:
    """One JSON object a line: a note with the cost, the lines that keep memory, then one with `done`. Hanging up ends
    the tracing."""
    lines = _with_source(target, stream(target, "leaks", seconds=wanted.seconds, steps=wanted.steps))
    return NdjsonResponse(audited_lines(request, target, "leaks", repr(wanted), lines))


@control.post("/v1/memory/snapshot", status_code=200, response_model=SnapshotLine, response_class=NdjsonResponse)
async def snapshot(request: Request, target: ChosenTarget, wanted: SnapshotRequest) -> Response:
    """One JSON object a line: the pickle that torch.cuda.memory._dump_snapshot writes, in pieces, then `done`."""
    lines = stream(target, "memory_snapshot")
    return NdjsonResponse(audited_lines(request, target, "snapshot", repr(wanted), lines))


async def _with_source(target: Target, lines: AsyncIterator[Line]) -> AsyncIterator[Line]:
    """Add the text of each line, as far as it can be read."""
    async with aclosing(lines) as opened:  # type: ignore[type-var]  # a generator, as its type does not say
        async for line in opened:
            if "rows" in line:
                line["columns"] = [*line["columns"], "source"]
                line["rows"] = [[*row, source_line(target, str(row[1]), int(row[2]))] for row in line["rows"]]
            yield line
