"""Targets of a host, and Python processes that could become one."""

from __future__ import annotations

from dataclasses import dataclass, field

from ._documented import DOCUMENTED

__all__ = ["Candidate", "DetachRequest", "Detached", "Health", "TargetInfo", "TargetList"]


@dataclass(frozen=True)
class TargetInfo:
    """One process with a recorder, including ended ones: their rings outlive them."""

    __pydantic_config__ = DOCUMENTED

    pid: int
    """process id, as the host sees it"""
    rank: int | None
    """rank in its job; 0 without a job, null until it is known"""
    local_rank: int
    """rank among the job's processes of this host"""
    world_size: int
    """number of ranks in the job; 1 if it is not distributed"""
    host: str
    """name of the host it runs on"""
    uid: int
    """the user it runs as"""
    alive: bool
    """whether the process still exists"""
    state: str
    """its state according to the kernel: running, sleeping, waiting for a disk, stopped, zombie, gone"""
    step: int | None
    """the newest step it recorded"""
    step_age_s: float | None
    """how long ago that step ended, in seconds"""
    age_s: float | None
    """how long the process has run, in seconds; null once it has ended"""
    command: tuple[str, ...]
    """its command line"""
    python: str
    """version of its Python"""
    torch: str | None
    """version of its torch; null if it has not imported torch"""
    version: str
    """version of the recorder in it"""
    how: str
    """how the recorder was started: pending call, quiet thread, planned"""
    attached_at: float
    """start of the recorder, in seconds since 1970"""
    folder: str
    """folder of its rings and its socket"""
    ended: str = ""
    """how it ended (was killed by SIGKILL, raised RuntimeError: …), if known; of a living one, why its
    interpreter shuts down; empty otherwise"""
    ended_badly: bool = False
    """whether it was killed or raised, or its end is unknown"""
    ended_at: float | None = None
    """time of its end, in seconds since 1970 by its host's clock; null if unknown"""
    last_seen: float | None = None
    """of an ended one, the last tick of its recorder"""
    job: str = ""
    """name of its job, the same for all its ranks on all hosts; empty until it is known"""
    store: str = ""
    """the store of its job; empty until it is known"""
    roles: dict[str, int] = field(default_factory=dict)
    """its known coordinates along the parallel dimensions of its job (dp, tp, pp, cp, ep, stage)"""
    server_problem: str = ""
    """why the host server that it was to start (PROBE_LISTEN) did not start; empty if it did, or was not requested"""
    uncounted: bool = False
    """whether its steps are counted from the attach, because the job's own count is not known"""
    asleep: dict[str, float] = field(default_factory=dict)
    """by the kernel's number of a thread: for how many seconds it had not run when the recorder came; those of a second
    and more"""
    stall: str = ""
    """how long no step has ended, and what the job does instead, if that counts as a stall or precedes the first step;
    of an ended target, at its end"""


@dataclass(frozen=True)
class Candidate:
    """A Python process of this user without a recorder."""

    __pydantic_config__ = DOCUMENTED

    pid: int
    """process id, as the host sees it"""
    uid: int
    """the user it runs as"""
    state: str
    """its state according to the kernel"""
    age_s: float | None
    """time since its start, in seconds"""
    command: tuple[str, ...]
    """its command line"""


@dataclass(frozen=True)
class TargetList:
    """All targets of this host that the server can see."""

    __pydantic_config__ = DOCUMENTED

    targets: tuple[TargetInfo, ...]
    """sorted by rank and PID"""
    candidates: tuple[Candidate, ...] = ()
    """Python processes without a recorder; only with `candidates=true`"""


@dataclass(frozen=True)
class Health:
    """State of the host server."""

    __pydantic_config__ = DOCUMENTED

    version: str
    """version of the host server"""
    host: str
    """name of its host"""
    targets: int
    """number of living targets it sees"""


@dataclass(frozen=True)
class DetachRequest:
    """Options of a detach."""

    __pydantic_config__ = DOCUMENTED

    keep: bool = False
    """keep the rings, like those of an ended target"""


@dataclass(frozen=True)
class Detached:
    """Result of a detach."""

    __pydantic_config__ = DOCUMENTED

    detached: int
    """process id of the target"""
    kept: str | None = None
    """the folder with its rings, if they were kept"""
