"""Asks one rank for the facts that a comparison needs, and for the time on its host's clock.

Runs in the CLI on its event loop, for all ranks at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import time
from typing import Any

from probe_agent.errors import NoAnswer, ProbeError
from probe_agent.wire import HostClock, QueryRequest, QueryResult
from probe_cli.client import Client

from .clocks import NUM_TRIPS, Trip, clock_of
from .facts import Clock, Facts, Who
from .questions import FACTS

__all__ = ["host_clock", "question"]


def question(needs: Sequence[str], num_steps: int, timeout_s: float) -> Callable[[Client], Awaitable[Facts]]:
    """What to put to each rank. Who it is, is known to whoever asks; a fact that it cannot tell is a gap."""

    async def ask(client: Client) -> Facts:
        told: dict[str, Any] = {}  # each by the field of Facts it fills
        gaps: list[str] = []
        for name in needs:
            if not FACTS[name].is_wanted(told):
                continue
            request = QueryRequest(FACTS[name].sql(num_steps), timeout_s=timeout_s)
            try:
                answer = await client.send(QueryResult, "POST", "/v1/query", request)
            except ProbeError as error:
                if len(gaps) + 1 == len(needs) or (not told and isinstance(error, NoAnswer)):
                    raise  # it has nothing to tell
                gaps.append(f"{name}: {error.message}")
                continue
            told[name] = FACTS[name].read(answer.rows)
        clock = await host_clock(client) if "calls" in needs else None
        return Facts(Who(-1, "", 0), clock=clock, gaps=tuple(gaps), **told)

    return ask


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
