"""`GET /v1/clock`: what time is it on this host?

A client that asks a few times knows by how much the host's clock is off its own, to within half of the shortest round
trip.
"""

from __future__ import annotations

import socket
from time import time

from fastapi import APIRouter

from probe_agent.server.access import Role
from probe_agent.server.problem import PROBLEMS
from probe_agent.wire import HostClock

__all__ = ["ROLE", "router"]

ROLE: Role = "read"
router = APIRouter(responses=PROBLEMS)


@router.get("/v1/clock")
async def clock() -> HostClock:
    """The host's clock: nothing else is done between the two readings."""
    received = time()
    return HostClock(socket.gethostname(), received, time())
