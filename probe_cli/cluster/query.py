"""One SQL statement to one endpoint, or to several that answer as one database holding all their rows.

Runs in the CLI on its event loop. The answer is rows, or Arrow as the server encodes it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from probe_agent.units import MIB
from probe_agent.wire import QueryRequest, QueryResult, decode
from probe_cli.client import Client, Data
from probe_cli.endpoint import Endpoint, TcpServer, UnixServer

from .fanout import Answers, ask, open_conversation

if TYPE_CHECKING:
    from probe_agent.sql.engine.request import Answer

__all__ = ["Limits", "query_arrow", "query_rows"]

Reply = TypeVar("Reply")
ARROW = "application/vnd.apache.arrow.stream"
#: The server ends a query at its limit; a server that does not is given up this much later.
GRACE_S = 3.0


@dataclass(frozen=True)
class Limits:
    """What a query to several endpoints may cost."""

    host_timeout_s: float = 5.0
    max_transfer_mib: float = 256.0


async def query_rows(
    endpoints: Sequence[Endpoint],
    request: QueryRequest,
    limits: Limits,
    *,
    inject: bool,
    remark: Callable[[str], None],
) -> Answers[QueryResult]:
    """The rows. Several endpoints have one answer together: each that has a part in it is `answered` with all of it."""

    async def question(client: Client) -> QueryResult:
        return await client.send(QueryResult, "POST", "/v1/query", request)

    if len(endpoints) < 2:
        return await _ask_one(endpoints, question, request, inject, remark)
    outcome, answers = await _merged(endpoints, request, limits, inject, remark, arrow=False)
    if outcome is None:
        return Answers((), answers.unanswered)
    result = replace(decode(QueryResult, json.loads(outcome.body)), notes=outcome.notes, missing=outcome.missing)
    return Answers(tuple((endpoint, result) for endpoint, _ in answers.answered), answers.unanswered)


async def query_arrow(
    endpoints: Sequence[Endpoint],
    request: QueryRequest,
    limits: Limits,
    *,
    inject: bool,
    remark: Callable[[str], None],
) -> Answers[Data]:
    """The same as an Arrow IPC stream."""

    async def question(client: Client) -> Data:
        return await client.data("/v1/query", request, ARROW)

    if len(endpoints) < 2:
        return await _ask_one(endpoints, question, request, inject, remark)
    outcome, answers = await _merged(endpoints, request, limits, inject, remark, arrow=True)
    if outcome is None:
        return Answers((), answers.unanswered)
    data = Data(outcome.body, list(outcome.notes), {}, list(outcome.missing))
    return Answers(tuple((endpoint, data) for endpoint, _ in answers.answered), answers.unanswered)


async def _ask_one(
    endpoints: Sequence[Endpoint],
    question: Callable[[Client], Awaitable[Reply]],
    request: QueryRequest,
    inject: bool,
    remark: Callable[[str], None],
) -> Answers[Reply]:
    """Ask the one endpoint there is, also while its recorder is on its way: the tables of its host are there."""
    timeout_s = request.timeout_s + GRACE_S
    return await ask(endpoints, question, timeout_s=timeout_s, inject=inject, remark=remark, needs_agent=False)


async def _merged(
    endpoints: Sequence[Endpoint],
    request: QueryRequest,
    limits: Limits,
    inject: bool,
    remark: Callable[[str], None],
    *,
    arrow: bool,
) -> tuple[Answer | None, Answers[None]]:
    from .sql import execute, start_merging  # a door: DuckDB, which only an answer of several hosts needs

    start_merging()
    async with open_conversation(
        _each_once(endpoints),
        timeout_s=limits.host_timeout_s,
        total_s=request.timeout_s,
        inject=inject,
        remark=remark,
    ) as conversation:
        outcome = await execute.answer(
            conversation,
            request,
            max_bytes=int(limits.max_transfer_mib * MIB),
            host_timeout_s=limits.host_timeout_s,
            arrow=arrow,
        )
        return outcome, conversation.answers(None)


def _each_once(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """`endpoints` without single ranks of a host server that is asked for all of its own."""

    def is_part(endpoint: Endpoint) -> bool:
        if not isinstance(endpoint, TcpServer | UnixServer) or endpoint.rank is None:
            return False
        return replace(endpoint, rank=None) in endpoints

    return [endpoint for endpoint in endpoints if not is_part(endpoint)]
