"""What a comparison comes to: one sentence, its fields, and the table it is seen in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Comparison", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """`state` is `stands out` when ranks are named, `nobody` when what was compared is alike, and `not enough data`
    when it cannot be told."""

    state: Literal["stands out", "nobody", "not enough data"]
    sentence: str
    ranks: tuple[int, ...] = ()
    #: data_wait, forward, backward, optimizer or other; the module, collective, memory or setting it is about.
    where: str | None = None
    #: What the named rank takes there and what the median of the others does: seconds, or MiB.
    value: float | None = None
    median: float | None = None
    #: Seconds a step that the named rank waits for others, and that the median of the others waits.
    wait: float | None = None
    others_wait: float | None = None
    #: How many steps were compared, how long one takes, and which part of it is the difference.
    num_steps: int = 0
    step: float | None = None
    share: float | None = None
    #: Difference in units of what the other ranks scatter.
    score: float | None = None
    #: What it rests on: collectives, phases, durations, module times, memory, traits.
    evidence: str | None = None


@dataclass(frozen=True)
class Comparison:
    """A verdict and its table; `notes` are what has to be known beside."""

    verdict: Verdict
    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    notes: tuple[str, ...] = field(default=())
