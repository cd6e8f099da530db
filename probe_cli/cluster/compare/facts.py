"""What one rank has told: plain data, times in seconds since 1970 on its host's clock, memory in MiB."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Call", "Clock", "Facts", "Memory", "ModuleTime", "Step", "Trait", "Who"]


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
class Step:
    """A row of `python.steps`; None where it was not measured."""

    number: int
    ended: float
    duration: float
    data_wait: float
    forward: float | None
    backward: float | None
    optimizer: float
    other: float
    sampled: bool


@dataclass(frozen=True)
class Call:
    """A row of `python.collectives`: `group` and `seq` are the same on all ranks that took part."""

    step: int
    group: str
    seq: int
    op: str
    start: float
    wait: float | None
    by_cpp: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return self.group, self.seq


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
    steps: tuple[Step, ...] = ()
    calls: tuple[Call, ...] = ()
    #: Those that Flight Recorder has now; their step is not known.
    recent: tuple[Call, ...] = ()
    modules: tuple[ModuleTime, ...] = ()
    memory: tuple[Memory, ...] = ()
    traits: tuple[Trait, ...] = ()
    clock: Clock | None = None
    #: What it could not tell, and why.
    gaps: tuple[str, ...] = ()
