"""The processes of a host: those with a recorder in them, and Python processes that could get one."""

from __future__ import annotations

from dataclasses import dataclass, field

from ._documented import DOCUMENTED

__all__ = ["Candidate", "DetachRequest", "Detached", "Health", "TargetInfo", "TargetList"]


@dataclass(frozen=True)
class TargetInfo:
    """One process with a recorder in it, dead ones included: their rings outlive them."""

    __pydantic_config__ = DOCUMENTED

    pid: int
    """process id, as the host sees it"""
    rank: int | None
    """rank in its job; 0 where it has none, null until it is known"""
    local_rank: int
    """rank among the job's processes of this host"""
    world_size: int
    """number of ranks in the job; 1 where it is not distributed"""
    host: str
    """name of the host it runs on"""
    uid: int
    """the user it runs as"""
    alive: bool
    """whether the process still exists"""
    state: str
    """what the kernel says it does: running, sleeping, waiting for a disk, stopped, zombie, gone"""
    step: int | None
    """the newest step it recorded"""
    step_age_s: float | None
    """how long ago that step ended, in seconds"""
    age_s: float | None
    """how long the process has run, in seconds; null once it is gone"""
    command: tuple[str, ...]
    """its command line"""
    python: str
    """version of its Python"""
    torch: str | None
    """version of its torch; null when it has not imported torch"""
    version: str
    """version of the recorder in it"""
    how: str
    """how the recorder came in: pending call, quiet thread, planned"""
    attached_at: float
    """when it came in, in seconds since 1970"""
    folder: str
    """where its rings and its socket lie"""
    ended: str = ""
    """how it ended (was killed by SIGKILL, raised RuntimeError: …), as far as that is known; of a living one, why its
    interpreter shuts down; empty otherwise"""
    ended_badly: bool = False
    """whether it was killed or raised, or nobody knows"""
    ended_at: float | None = None
    """when, in seconds since 1970, on its host's clock; null where nobody saw it"""
    last_seen: float | None = None
    """of one that has ended, when its recorder was last seen alive"""
    job: str = ""
    """name of its job, the same for all its ranks on all hosts; empty until it is known"""
    store: str = ""
    """where the ranks of its job meet; empty until it is known"""
    roles: dict[str, int] = field(default_factory=dict)
    """its coordinates along the dimensions its job is parallel in (dp, tp, pp, cp, ep, stage), those that are known"""
    server_problem: str = ""
    """why the host server that it was to start (PROBE_LISTEN) did not start; empty where it did, or none was wanted"""


@dataclass(frozen=True)
class Candidate:
    """A Python process of this user that has no recorder in it."""

    __pydantic_config__ = DOCUMENTED

    pid: int
    """process id, as the host sees it"""
    uid: int
    """the user it runs as"""
    state: str
    """what the kernel says it does"""
    age_s: float | None
    """how long it has run, in seconds"""
    command: tuple[str, ...]
    """its command line"""


@dataclass(frozen=True)
class TargetList:
    """All targets of this host that the server can see."""

    __pydantic_config__ = DOCUMENTED

    targets: tuple[TargetInfo, ...]
    """sorted by rank, then by process id"""
    candidates: tuple[Candidate, ...] = ()
    """Python processes without a recorder; only when asked for with `candidates=true`"""


@dataclass(frozen=True)
class Health:
    """The host server lives."""

    __pydantic_config__ = DOCUMENTED

    version: str
    """version of the host server"""
    host: str
    """name of its host"""
    targets: int
    """number of living targets it sees"""


@dataclass(frozen=True)
class DetachRequest:
    """How to take the recorder out."""

    __pydantic_config__ = DOCUMENTED

    keep: bool = False
    """leave the rings as those of a target that has ended"""


@dataclass(frozen=True)
class Detached:
    """The recorder is out of the target again."""

    __pydantic_config__ = DOCUMENTED

    detached: int
    """process id of the target"""
    kept: str | None = None
    """the folder that holds its rings, where they were kept; otherwise they are gone"""
