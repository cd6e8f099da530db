"""`GET /v1/health`: is the server there, and which version is it?"""

from __future__ import annotations

import socket

from fastapi import APIRouter

import probe_agent
from probe_agent.server.access import Role
from probe_agent.server.chosen import Directory
from probe_agent.server.problem import PROBLEMS
from probe_agent.wire import Health

__all__ = ["ROLE", "router"]

ROLE: Role = "read"
router = APIRouter(responses=PROBLEMS)


@router.get("/v1/health")
def health(directory: Directory) -> Health:
    """Whether the server lives, and how many living targets it sees."""
    living = sum(target.is_alive for target in directory.targets())
    return Health(probe_agent.__version__, socket.gethostname(), living)
