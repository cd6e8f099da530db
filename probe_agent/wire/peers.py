"""Where the other ranks of a job can be asked."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["Peer", "PeerList"]


@dataclass(frozen=True)
class Peer:
    """One rank, as its recorder has said it in the job's own store."""

    __pydantic_config__ = DOCUMENTED

    rank: int
    """rank in the job"""
    host: str
    """name of its host"""
    pid: int
    """process id there"""
    attached_at: float
    """when its recorder came in, in seconds since 1970: with the host, what tells two targets apart"""
    address: str | None
    """where its host server can be asked; null when none listens on TCP"""
    note: str
    """what limits that: it listens on loopback, say"""


@dataclass(frozen=True)
class PeerList:
    """The ranks of the jobs that run on this host, on whatever host they are."""

    __pydantic_config__ = DOCUMENTED

    peers: tuple[Peer, ...]
    """sorted by rank"""
    notes: tuple[str, ...]
    """why ranks may be missing"""
