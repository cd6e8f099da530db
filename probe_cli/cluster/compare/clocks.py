"""How far the hosts' clocks are apart: Cristian's algorithm.

A host server says when a question came in and when its answer went out, by its own clock. Whatever the network did, the
question came in after we sent it and the answer left before we got it: so the offset is known to within half of the
round trip less the time spent there. Of several trips the shortest is believed. Ranks of one host share a clock, so
between them there is no uncertainty at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .facts import Clock, Facts

__all__ = ["NUM_TRIPS", "Trip", "clock_of", "one_clock_a_host", "uncertainty_between"]

#: Round trips to each host server: the shortest of a few is near the shortest there is.
NUM_TRIPS = 6


@dataclass(frozen=True)
class Trip:
    """One round trip: `sent` and `got` by our clock, `received` and `answered` by the host's."""

    sent: float
    received: float
    answered: float
    got: float

    @property
    def uncertainty(self) -> float:
        return max(0.0, (self.got - self.sent) - (self.answered - self.received)) / 2

    @property
    def offset(self) -> float:
        return ((self.received - self.sent) + (self.answered - self.got)) / 2


def clock_of(trips: Sequence[Trip]) -> Clock | None:
    """The host's clock against ours by the best of `trips`; None of none."""
    if not trips:
        return None
    best = min(trips, key=lambda trip: trip.uncertainty)
    return Clock(best.offset, best.uncertainty, len(trips))


def one_clock_a_host(facts: Iterable[Facts]) -> list[Facts]:
    """The same facts, with all ranks of a host on the clock that is known best of those measured there."""
    facts = list(facts)
    best: dict[str, Clock] = {}
    for fact in facts:
        known = best.get(fact.who.host)
        if fact.clock is not None and (known is None or fact.clock.uncertainty < known.uncertainty):
            best[fact.who.host] = fact.clock
    return [replace(fact, clock=best.get(fact.who.host)) for fact in facts]


def uncertainty_between(facts: Sequence[Facts]) -> float | None:
    """By how much times of different hosts may be wrong against each other at most; None where that is not known."""
    clocks = {fact.who.host: fact.clock for fact in facts}
    if len(clocks) < 2:
        return 0.0
    known = sorted(clock.uncertainty for clock in clocks.values() if clock is not None)
    return known[-1] + known[-2] if len(known) == len(clocks) else None
