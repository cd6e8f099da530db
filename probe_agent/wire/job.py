"""Ranks of a job: training processes on this host, and the other ranks wherever they run."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = [
    "ExtendTimeoutRequest",
    "GroupTimeout",
    "GroupTimeouts",
    "Launched",
    "LaunchedList",
    "Peer",
    "PeerList",
    "SiblingList",
]


@dataclass(frozen=True)
class Launched:
    """One training process started by a launcher."""

    __pydantic_config__ = DOCUMENTED

    pid: int
    """process id, as the host sees it"""
    rank: int | None
    """rank in its job; 0 without a job, null until it is known"""
    command: tuple[str, ...]
    """its command line"""


@dataclass(frozen=True)
class LaunchedList:
    """The training processes of a launcher; of another process those with torch that it has started, such as actors."""

    __pydantic_config__ = DOCUMENTED

    launcher: str
    """kind of launcher (torchrun, accelerate, mp.spawn, …); empty if it is not a launcher"""
    processes: tuple[Launched, ...]
    """by rank"""


@dataclass(frozen=True)
class SiblingList:
    """The ranks on this host of the job that a process is a rank of, whether or not they have a recorder."""

    __pydantic_config__ = DOCUMENTED

    by: str
    """what they share: a store, or their parent; empty if the process is not known to be a rank"""
    processes: tuple[Launched, ...]
    """by rank"""
    launcher: str
    """the script or module of their launcher (torchrun, …); empty if there is no known one"""


@dataclass(frozen=True)
class Peer:
    """One rank, as its recorder published it in the job's own store."""

    __pydantic_config__ = DOCUMENTED

    rank: int
    """rank in the job"""
    host: str
    """name of its host"""
    pid: int
    """process id there"""
    attached_at: float
    """start of its recorder, in seconds since 1970; identifies the target together with host and pid"""
    address: str | None
    """address of its host server; null if it does not listen on TCP"""
    note: str
    """limits of that address, such as loopback"""


@dataclass(frozen=True)
class PeerList:
    """The ranks, on all hosts, of the jobs that run on this host."""

    __pydantic_config__ = DOCUMENTED

    peers: tuple[Peer, ...]
    """sorted by rank"""
    notes: tuple[str, ...]
    """why ranks may be missing"""


@dataclass(frozen=True)
class ExtendTimeoutRequest:
    """A longer timeout for the process groups of a rank."""

    __pydantic_config__ = DOCUMENTED

    seconds: float
    """the timeout of calls that are made from now on; a group whose timeout is longer keeps it"""


@dataclass(frozen=True)
class GroupTimeout:
    """The timeout of one process group in one rank."""

    __pydantic_config__ = DOCUMENTED

    group: str
    """torch's name of the group"""
    before_s: float | None
    """its timeout so far, in seconds; null if torch does not say"""
    now_s: float | None
    """its timeout for calls that are made from now on"""


@dataclass(frozen=True)
class GroupTimeouts:
    """The timeouts of a rank's process groups. Calls that already wait keep the timeout they were made with."""

    __pydantic_config__ = DOCUMENTED

    groups: tuple[GroupTimeout, ...]
    """one entry per group and backend"""
    notes: tuple[str, ...]
    """groups whose timeout could not be changed"""
