"""The hosts' clocks against ours, from the times of short questions.

Runs in the CLI on its event loop, a few hosts at a time and when nothing else is asked: what a question waits for, here
or there, makes the clock less certain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import time

from probe_agent.errors import ProbeError
from probe_agent.wire import HostClock
from probe_cli.client import Client
from probe_cli.cluster.fanout import ask
from probe_cli.endpoint import Endpoint

from .facts import NUM_TRIPS, Clock, Trip, clock_of

__all__ = ["clocks_of", "host_clock"]

#: Hosts at a time.
MAX_AT_ONCE = 8
#: A clock that is known to within this is known well enough; otherwise the host is asked again, so many times at most.
WELL_KNOWN_S, MAX_TRIPS = 1e-3, 24
#: How long all clocks together may take.
CLOCKS_S = 10.0


async def clocks_of(hosts: Mapping[str, Endpoint]) -> dict[str, Clock]:
    """Return the clock of each host, by its name, from one endpoint there; without those that do not tell."""
    slots = asyncio.Semaphore(MAX_AT_ONCE)

    async def question(client: Client) -> Clock | None:
        async with slots:
            return await host_clock(client)

    answers = await ask(
        tuple(hosts.values()), question, timeout_s=CLOCKS_S, inject=False, remark=lambda text: None, doing=""
    )
    told = dict(answers.answered)
    return {host: clock for host, endpoint in hosts.items() if (clock := told.get(endpoint)) is not None}


async def host_clock(client: Client) -> Clock | None:
    """The host's clock against ours; None where an older server does not tell."""
    trips: list[Trip] = []
    try:
        while len(trips) < NUM_TRIPS or (len(trips) < MAX_TRIPS and not _is_well_known(trips)):
            sent = time()
            told = await client.get_alone(HostClock, "/v1/clock")
            trips.append(Trip(sent, told.received, told.answered, time()))
    except ProbeError:
        return None
    return clock_of(trips)


def _is_well_known(trips: list[Trip]) -> bool:
    return min(trip.uncertainty for trip in trips) <= WELL_KNOWN_S
