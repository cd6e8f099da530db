"""Kinds of jobs, the faults possible in each, and the right answers.

`programs/straggling/` has the jobs themselves.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["HEALTHY", "KINDS", "PHASES", "SHARES", "Case", "matrix"]

#: What is slow -> the phases that are right; empty where no one phase is.
PHASES: dict[str, tuple[str, ...]] = {
    "nobody": (),
    "uneven": (),
    "data": ("data_wait",),
    "loader": ("data_wait",),
    "forward": ("forward",),
    "layer": ("forward",),
    "collector": ("forward",),
    "backward": ("backward",),
    "between": ("other",),
    "optimizer": ("optimizer",),
    "checkpoint": ("other",),
    "logging": ("other",),
    "stop": (),
    "hog": (),
    "gil": (),
    "host": (),
}
#: No rank may be named for these.
HEALTHY = ("nobody", "uneven")
#: Slow in every n-th step; all others in every step.
EVERY = {"loader": 5, "checkpoint": 10, "stop": 10}
#: Steps of a block in turns of healthy and faulty ones.
BLOCK = {"collector": 20}

_COMMON = (
    "forward", "backward", "optimizer", "between", "checkpoint", "collector", "logging", "stop", "hog", "gil", "host",
)  # fmt: skip
_LOADING = ("data", "loader", "uneven")
KINDS: dict[str, tuple[str, ...]] = {
    "ddp": (*_COMMON, *_LOADING),
    "fsdp": (*_COMMON, *_LOADING),
    "accumulate": (*_COMMON, *_LOADING),
    "compiled": (*_COMMON, *_LOADING),
    "trainer": (*_COMMON, *_LOADING),
    "tp": (*_COMMON, *_LOADING, "layer"),
    "tp-hand": (*_COMMON, *_LOADING, "layer"),
    "pipe": (*_COMMON, "data"),
    "pipe-hand": (*_COMMON, "data"),
    "pipe-dp": (*_COMMON, "data"),
}
NUM_RANKS = 4
#: The ranks that load data, where not all do.
LOADING = {"pipe": (0, 3), "pipe-hand": (0, 3), "pipe-dp": (0, 1, 2, 3)}
#: Of the time of the job.
SHARES = (0.07, 0.2, 0.45)


@dataclass(frozen=True)
class Case:
    """The slow ranks, the place, and the planned share of the job's time, as far as it can be planned."""

    what: str
    ranks: tuple[int, ...] = ()
    share: float = 0.0
    #: In each step in which it is slow, instead of `share`.
    seconds: float = 0.0

    @property
    def every(self) -> int:
        return EVERY.get(self.what, 1)

    @property
    def block(self) -> int:
        return BLOCK.get(self.what, 10)

    @property
    def is_healthy(self) -> bool:
        return self.what in HEALTHY

    def name(self, kind: str) -> str:
        """Return the name of its folder, without the number."""
        ranks = "".join(map(str, self.ranks)) or "x"
        return f"{kind}-{self.what}-{ranks}"


def matrix(kind: str, chance: random.Random, shares: Sequence[float] = SHARES, healthy: int = 3) -> list[Case]:
    """Return every fault of a kind of job with each share, the rank drawn at random, and healthy jobs in between."""
    cases = [Case("nobody") for _ in range(healthy)]
    for what in KINDS[kind]:
        for share in shares:
            if what == "host":
                ranks: tuple[int, ...] = (2, 3) if chance.random() < 0.5 else (0, 1)
            elif what == "uneven":
                ranks = ()
            elif what in ("data", "loader"):
                ranks = (chance.choice(LOADING.get(kind, range(NUM_RANKS))),)
            else:
                ranks = (chance.randrange(NUM_RANKS),)
            cases.append(Case(what, ranks, share))
    chance.shuffle(cases)
    return cases
