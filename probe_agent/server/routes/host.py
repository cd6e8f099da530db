"""The host server itself: its health and its clock."""

from __future__ import annotations

import socket
from time import time

from fastapi import APIRouter

import probe_agent
from probe_agent.server.dependencies import Directory
from probe_agent.wire import Health, HostClock

__all__ = ["read"]

read = APIRouter()


@read.get("/v1/health")
def health(directory: Directory) -> Health:
    """Return that the server is running, and the number of its living targets."""
    living = sum(target.is_alive for target in directory.targets())
    return Health(probe_agent.__version__, socket.gethostname(), living)


@read.get("/v1/clock")
async def clock() -> HostClock:
    """Return the host's clock; no other work happens between the two readings."""
    received = time()
    return HostClock(socket.gethostname(), received, time())
