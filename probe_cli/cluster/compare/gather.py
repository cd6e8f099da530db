"""Asks one rank for the facts that a comparison needs, and for the time on its host's clock.

Runs in the CLI on its event loop, for all ranks at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from time import time
from typing import Any

from probe_agent.errors import NoAnswer, ProbeError, QueryFailed
from probe_agent.wire import HostClock, QueryRequest, QueryResult
from probe_cli.client import Client
from probe_cli.endpoint import Endpoint

from .facts import NUM_TRIPS, Clock, Facts, Trip, Who, clock_of
from .questions import FACTS, Extent, Question

__all__ = ["host_clock", "question"]


def question(
    needs: Sequence[str],
    extent: Extent,
    timeout_s: float,
    *,
    clocks_of: Container[Endpoint] = (),
) -> Callable[[Client], Awaitable[Facts]]:
    """What to put to each rank. Who it is, is known to whoever asks; a fact that it cannot tell is a gap. The clock is
    asked of those in `clocks_of`: one of each host is enough."""

    async def ask(client: Client) -> Facts:
        told: dict[str, Any] = {}  # each by the field of Facts it fills
        gaps: list[str] = []
        for name in needs:
            if not FACTS[name].is_wanted(told):
                continue
            try:
                told[name] = await _fact(client, FACTS[name], extent, timeout_s)
            except ProbeError as error:
                if len(gaps) + 1 == len(needs) or (not told and isinstance(error, NoAnswer)):
                    raise  # it has nothing to tell
                gaps.append(f"{name}: {error.message}")
        clock = await host_clock(client) if client.endpoint in clocks_of else None
        return Facts(Who(-1, "", 0), clock=clock, gaps=tuple(gaps), **told)

    return ask


async def _fact(client: Client, wanted: Question, extent: Extent, timeout_s: float) -> Any:
    async def rows(sql: str) -> Sequence[Any]:
        return (await client.send(QueryResult, "POST", "/v1/query", QueryRequest(sql, timeout_s=timeout_s))).rows

    try:
        found = await rows(wanted.sql(extent))
    except QueryFailed:
        if wanted.older is None:
            raise
        found = await rows(wanted.older(extent))
    try:
        return wanted.read(found)
    except (ValueError, TypeError, IndexError) as wrong:
        raise NoAnswer(
            f"{client.endpoint} answered with rows that do not fit the question ({wrong})",
            "update the host server there to this version",
        ) from wrong


async def host_clock(client: Client) -> Clock | None:
    """The host's clock against ours; None where an older server does not tell."""
    trips = []
    try:
        for _ in range(NUM_TRIPS):
            sent = time()
            told = await client.get(HostClock, "/v1/clock")
            trips.append(Trip(sent, told.received, told.answered, time()))
    except ProbeError:
        return None
    return clock_of(trips)
