"""Rows of one rank about its steps and its calls of collectives, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["CALLS", "STEPS", "RankRows", "Who"]

#: Columns of `RankRows.steps`, from `python.steps`. `number` is int64, the others float64 in seconds, NaN where not
#: measured; `ended` is `ts`, in seconds since 1970 on the rank's host.
STEPS = (
    "number",
    "ended",
    "duration",
    "data_wait",
    "forward",
    "backward",
    "optimizer",
    "evaluation",
    "generation",
    "other",
)
#: Columns of `RankRows.calls`, from `python.collectives`. `step`, `seq` and `peer` are int64 (peer: the other end's
#: rank in the job, -1 where there is none or it is not known), `group`, `op` and `phase` text (phase: "" where not
#: known), `start`, `ended` (`ts`) and `wait` float64 (wait: NaN where not known), `by_cpp` and `on_device` bool.
CALLS = ("step", "group", "seq", "op", "peer", "start", "ended", "wait", "phase", "by_cpp", "on_device")


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
class RankRows:
    """The rows of one rank, in any order; a call may come twice (a long one has a row while it waits): the one that
    ended last counts. Failed calls are left out by whoever makes this."""

    who: Who
    steps: Mapping[str, np.ndarray]
    calls: Mapping[str, np.ndarray]
    #: Coordinates in the job, such as {"dp": 1, "tp": 0, "pp": 3}; empty where not known.
    roles: Mapping[str, int] = field(default_factory=dict)
    #: To be taken off the times of its host to be on the clock that all share, and how far that may be wrong; None
    #: where it is not known.
    offset: float = 0.0
    uncertainty: float | None = 0.0
    #: The ranks of each of its groups, where known. Groups of different ranks that have the same name (those that
    #: were split off) can only be told apart by them.
    members: Mapping[str, Sequence[int]] = field(default_factory=dict)
    #: Numbers of steps that say nothing about the job: the analysis is of steps before or after them.
    left_out: Sequence[int] | np.ndarray = ()
