"""What one rank has told: plain data, times in seconds since 1970 on its host's clock, memory in MiB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Clock", "Columns", "Facts", "Group", "Memory", "ModuleTime", "Trait", "Who", "of_host"]

#: A table by columns of equal length; empty where it was not asked, or has no rows.
Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True, order=True)
class Who:
    """One target of the job."""

    rank: int
    host: str
    pid: int

    def __hash__(self) -> int:
        return self.rank  # of thousands of ranks they are looked up a million times

    def __str__(self) -> str:
        return f"rank {self.rank}"


@dataclass(frozen=True)
class ModuleTime:
    """What a module took in sampled steps: median, 30 % quantile and median absolute deviation over these steps.

    `host` is the time of its own code, without the modules below it; `device` is with them, None on a CPU.
    """

    module: str
    stage: str
    num_steps: int
    host: float
    host_low: float
    host_scatter: float
    device: float | None
    device_low: float | None
    device_scatter: float | None


@dataclass(frozen=True)
class Memory:
    """The memory of a rank over its newest steps."""

    name: str
    median: float
    first: float
    last: float
    num_steps: int


@dataclass(frozen=True)
class Group:
    """A process group: what its maker calls it, and its ranks in the job; empty where not known."""

    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Trait:
    """A setting, a version, a variable or the hash of a file."""

    kind: str
    name: str
    value: str | None


@dataclass(frozen=True)
class Clock:
    """A host's clock against ours: `offset` is to be taken off its times; right to within `uncertainty`."""

    offset: float
    uncertainty: float
    num_trips: int = 0


@dataclass(frozen=True)
class Facts:
    """All that one rank has told; what was not asked, or not answered, is empty."""

    who: Who
    #: Rows of `python.steps`, by step.
    steps: Columns = field(default_factory=dict)
    #: Rows of `python.collectives`, by start.
    calls: Columns = field(default_factory=dict)
    #: Calls of C++ that Flight Recorder has now; their step is not known.
    recent: Columns = field(default_factory=dict)
    #: By the name that `calls` have.
    groups: Mapping[str, Group] = field(default_factory=dict)
    modules: tuple[ModuleTime, ...] = ()
    memory: tuple[Memory, ...] = ()
    traits: tuple[Trait, ...] = ()
    #: Rows of `process.samples`, by time.
    samples: Columns = field(default_factory=dict)
    #: Rows of `python.gc`, by time.
    pauses: Columns = field(default_factory=dict)
    #: MHz of its GPU's processors while it worked, None without one.
    gpu_clock: float | None = None
    clock: Clock | None = None
    #: What the rank is in its job, where that is known: {"dp": 1, "tp": 0, "pp": 3}.
    roles: Mapping[str, int] = field(default_factory=dict)
    #: What it could not tell, and why.
    gaps: tuple[str, ...] = ()


def of_host(who: Who, facts: Sequence[Facts]) -> str:
    """` (on node2)`, where there are several hosts."""
    return f" (on {who.host})" if len({fact.who.host for fact in facts}) > 1 else ""
