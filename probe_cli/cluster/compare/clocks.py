"""The hosts' clocks against ours, from the times of short questions.

Runs in the CLI on its event loop, a few hosts at a time and when nothing else is asked: what a question waits for, here
or there, makes the clock less certain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from time import monotonic

from probe_agent.errors import ProbeError
from probe_agent.wire import HostClock
from probe_cli.client import Client
from probe_cli.cluster.fanout import ask
from probe_cli.endpoint import Endpoint

from .facts import NUM_TRIPS, Clock, Trip, clock_of

__all__ = ["clocks_of", "host_clock"]

#: Hosts at a time, not counting those that are so far away that a trip takes longer than this.
MAX_AT_ONCE, FAR_S = 8, 0.05
#: A clock that is known to within this is known well enough; otherwise the host is asked again, so many times at most
#: and for no longer than this.
WELL_KNOWN_S, MAX_TRIPS, MORE_S = 1e-3, 24, 0.5
#: How long all clocks together may take.
CLOCKS_S = 20.0


async def clocks_of(hosts: Mapping[str, Endpoint]) -> dict[str, Clock]:
    """Return the clock of each host, by its name, from one endpoint there; without those that do not tell."""
    places = asyncio.Semaphore(MAX_AT_ONCE)

    async def question(client: Client) -> Clock | None:
        async with AsyncExitStack() as place:
            await place.enter_async_context(places)
            return await host_clock(client, place.aclose)

    answers = await ask(
        tuple(hosts.values()), question, timeout_s=CLOCKS_S, inject=False, remark=lambda text: None, doing=""
    )
    told = dict(answers.answered)
    return {host: clock for host, endpoint in hosts.items() if (clock := told.get(endpoint)) is not None}


async def host_clock(client: Client, is_far: Callable[[], Awaitable[None]] | None = None) -> Clock | None:
    """The host's clock against ours; None where an older server does not tell. `is_far` is called when a trip takes
    longer than `FAR_S`: others need not wait for this host."""
    trips: list[Trip] = []
    began = monotonic()
    try:
        while len(trips) < NUM_TRIPS or (
            len(trips) < MAX_TRIPS and monotonic() - began < MORE_S and not _is_well_known(trips)
        ):
            told, sent, got = await client.timed(HostClock, "/v1/clock")
            trips.append(Trip(sent, told.received, told.answered, got))
            if is_far is not None and got - sent > FAR_S:
                await is_far()
                is_far = None
    except ProbeError:
        return None
    return clock_of(trips)


def _is_well_known(trips: list[Trip]) -> bool:
    return min(trip.uncertainty for trip in trips) <= WELL_KNOWN_S
