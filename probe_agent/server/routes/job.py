"""A whole job, on all its hosts: verdicts, ranks, and SQL over all of them. The command line makes these answers.

They are the server's own questions, with its user's rights and with arguments that are fixed here: who may read gets
them too, and all who ask within a few seconds share one answer.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from probe_agent.errors import BadRequest, LimitReached
from probe_agent.server.access.roles import Caller
from probe_agent.server.command_server import Commands
from probe_agent.server.disconnect import unless_disconnected
from probe_agent.wire import JobAnswer, JobQueryRequest, QueryRequest

__all__ = ["read"]

read = APIRouter()

#: Arguments, time limit and how old an answer may be, in seconds. None of them runs code in a target, or stops one.
VERDICTS: dict[str, tuple[tuple[str, ...], float, float]] = {
    "compare": (("compare", "--watch", "0"), 60.0, 10.0),
    "diagnose": (("diagnose",), 60.0, 30.0),
    "hang": (("hang", "--between", "1"), 60.0, 3.0),
    "memory": (("memory",), 60.0, 15.0),
    "ranks": (("ranks",), 30.0, 2.0),
}
_JOB = re.compile(r"[a-z]{1,32}")

Job = Annotated[str, Query(description="the job whose name begins with this; none where there is one")]


@read.get("/v1/job/{verdict}")
async def verdict(
    request: Request, verdict: Annotated[str, Path(description=f"one of {', '.join(VERDICTS)}")], job: Job = ""
) -> JobAnswer:
    """Return what `probe … compare`, `diagnose`, `hang`, `memory` or `ranks` says about all ranks of the job."""
    if verdict not in VERDICTS:
        raise BadRequest(f"no verdict is called {verdict!r}", f"use one of {', '.join(VERDICTS)}")
    arguments, timeout_s, fresh_s = VERDICTS[verdict]
    commands: Commands = request.app.state.commands
    question = (*_endpoint(request, job), *arguments, "--format", "envelope")
    asked = commands.shared(question, timeout_s, fresh_s, is_verdict=verdict != "ranks")
    return await unless_disconnected(request, asked)


@read.post("/v1/job/query")
async def query(request: Request, wanted: JobQueryRequest, job: Job = "") -> JobAnswer:
    """Return the rows of one read-only statement over all ranks of the job, on all its hosts."""
    caller: Caller = request.state.caller
    question = QueryRequest(wanted.sql, wanted.max_rows, wanted.timeout_s)
    try:
        held = caller.quota.held(question) if caller.quota else question
    except LimitReached as reached:
        raise (caller.quota.explained(reached) if caller.quota else reached) from None
    limits = ("--timeout", f"{held.timeout_s:g}", "--memory", str(held.memory_mb), "--max-rows", str(held.max_rows))
    commands: Commands = request.app.state.commands
    arguments = (*_endpoint(request, job), "query", *limits, "--format", "envelope", "--", held.sql)
    return await unless_disconnected(request, commands.shared(arguments, held.timeout_s, 1.0))


def _endpoint(request: Request, job: str) -> tuple[str, ...]:
    """Return what names the job to the command line: ourselves, as a server of one of its hosts."""
    if job and not _JOB.fullmatch(job):
        raise BadRequest(f"{job!r} is not the name of a job", "see: probe list")
    return ("-t", request.app.state.endpoint, *(("--job", job) if job else ()), "--all")
