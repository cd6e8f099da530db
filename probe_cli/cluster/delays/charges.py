"""Every wait charged to the own time that caused it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Charge", "Slot"]


@dataclass(frozen=True)
class Slot:
    """A stretch of own time, named by the call that follows: before the rank calls it, before it waits for one that
    it has called earlier (async), or after the last of the step."""

    before: Literal["call", "wait", "end"]
    op: str = ""
    group: str = ""
    #: Its number among the calls of this op in this group within the step, from 0.
    ordinal: int = 0

    def __str__(self) -> str:
        if self.before == "end":
            return "after the last collective"
        what = f"{self.op} {self.ordinal} of group {self.group}"
        return f"before {what}" if self.before == "call" else f"before the wait for {what}"


@dataclass(frozen=True)
class Charge:
    """Rank-seconds that other ranks stood still for this stretch of one rank's own time, in all steps together."""

    #: Index into `Analysis.who`.
    rank: int
    slot: Slot
    #: What the rank was in when it made the call that ends the stretch, such as "backward"; "" where not known.
    phase: str
    seconds: float
