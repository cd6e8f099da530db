"""A finding: what is wrong, who has it, what it costs, and what to do. Plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

__all__ = ["Certainty", "Finding", "NoEvidence", "NotApplicable", "merged"]


class Certainty(Enum):
    """How sure a finding is: it was seen, the numbers leave hardly another reading, or they fit. What is suspected is
    no finding: it is worth a second look, and shown only if that confirms it."""

    CERTAIN = 1.0
    LIKELY = 0.8
    POSSIBLE = 0.5
    SUSPECTED = 0.0

    @property
    def label(self) -> str:
        return self.name.lower()


class NoEvidence(Exception):
    """A rule cannot judge: what it needs was not recorded. The text says what is missing, and how to get it."""


class NotApplicable(Exception):
    """A rule has nothing to judge here: no GPU, one rank, no data loader."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    `sentence` names no rank: `ranks` do; of several with the same finding, the worst one's numbers are told.
    """

    sentence: str
    certainty: Certainty = Certainty.LIKELY
    #: Seconds a step, and share of the job's time from 0 to 1; None where it cannot be told.
    cost_s: float | None = None
    share: float | None = None
    ranks: tuple[int, ...] = ()
    #: Module, line, loader, …; findings of one rule at different places stay apart.
    where: str = ""
    since_step: int | None = None
    evidence: tuple[str, ...] = ()
    #: What to do, the most useful first.
    advice: tuple[str, ...] = ()
    #: A command or a change of code.
    try_first: str = ""
    #: Set by `judge`.
    rule: str = ""
    explains: tuple[Finding, ...] = ()

    @property
    def weight(self) -> float:
        """Order of findings: how sure, then how costly. What has no cost in time, such as a loss that is not finite,
        counts as costing half of it."""
        return self.certainty.value * (1 + (0.5 if self.share is None else self.share))


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of single ranks, put together where they are of the same rule and place: the costliest one's words."""
    by_place: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        by_place.setdefault((finding.rule, finding.where), []).append(finding)
    together = []
    for same in by_place.values():
        worst = max(same, key=lambda finding: finding.weight)
        ranks = tuple(sorted({rank for finding in same for rank in finding.ranks}))
        began = [finding.since_step for finding in same if finding.since_step is not None]
        together.append(replace(worst, ranks=ranks, since_step=min(began, default=None)))
    return together
