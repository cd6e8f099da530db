"""Ranks of a job: training processes on this host, and the other ranks wherever they run."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["Launched", "LaunchedList", "Peer", "PeerList", "SiblingList"]


@dataclass(frozen=True)
class Launched:
    """One training process that a launcher has started."""

    __pydantic_config__ = DOCUMENTED

    pid: int
    """process id, as the host sees it"""
    rank: int | None
    """rank in its job; 0 where it has none, null until it is known"""
    command: tuple[str, ...]
    """its command line"""


@dataclass(frozen=True)
class LaunchedList:
    """The training processes of a launcher."""

    __pydantic_config__ = DOCUMENTED

    launcher: str
    """what kind of launcher it is (torchrun, accelerate, mp.spawn, …); empty when it is none"""
    processes: tuple[Launched, ...]
    """by rank"""


@dataclass(frozen=True)
class SiblingList:
    """The ranks on this host of the job that a process is a rank of, whether or not they have a recorder."""

    __pydantic_config__ = DOCUMENTED

    by: str
    """what they have in common: a store, or their parent; empty where nothing says that it is a rank"""
    processes: tuple[Launched, ...]
    """by rank"""
    launcher: str
    """the script or module of the launcher above them (torchrun, …); empty where there is none that is known"""


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
