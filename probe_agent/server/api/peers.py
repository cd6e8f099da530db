"""`GET /v1/peers`: where the other ranks of the jobs on this host can be asked."""

from __future__ import annotations

from fastapi import APIRouter

from probe_agent.server.access import Role
from probe_agent.server.chosen import ChosenTargets
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import peers_of
from probe_agent.wire import Peer, PeerList

__all__ = ["ROLE", "router"]

ROLE: Role = "read"
router = APIRouter(responses=PROBLEMS)


@router.get("/v1/peers")
def peers(targets: ChosenTargets) -> PeerList:
    """What each recorder has said in its job's own store (torch's TCPStore) about the host server that answers for it.
    A rank without a recorder has said nothing."""
    found, notes = peers_of(targets)
    return PeerList(
        tuple(
            Peer(entry["rank"], entry["host"], entry["pid"], entry["attached_at"], entry["address"], entry["note"])
            for entry in found
        ),
        tuple(notes),
    )
