"""The result of a comparison: one sentence, its fields, the exit code, and the table it is seen in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .study import Study

__all__ = ["EXIT_CODES", "NO_ANSWER", "Comparison", "Verdict", "help_text"]

NOBODY_TO_BLAME = "ranks wait for each other by turns, or because a host is busy"
#: State of a verdict -> exit code and meaning.
EXIT_CODES = {
    "nobody": (0, "no rank stands out, and one that did would have been seen"),
    "not enough data": (1, "not enough data to tell"),
    "stands out": (5, "ranks, a host or a stage stand out and are named"),
    "rotates": (6, NOBODY_TO_BLAME),
    "busy host": (6, NOBODY_TO_BLAME),
    "hangs": (7, "the job hangs"),
}
#: As for every command: who did not answer comes before all but a hang.
NO_ANSWER = {3: "some ranks did not answer", 4: "none could be reached"}


@dataclass(frozen=True)
class Verdict:
    """The sentence on stdout, and what it says as fields. Times are in seconds."""

    state: Literal["nobody", "not enough data", "stands out", "rotates", "busy host", "hangs"]
    sentence: str
    ranks: tuple[int, ...] = ()
    #: What the ranks have in common: rank, ranks, host, stage, …
    kind: str | None = None
    #: The phase (data_wait, forward, backward, optimizer, evaluation, generation, other, "forward or other", "all
    #: phases"); the module, collective, memory, setting or busy host it is about.
    where: str | None = None
    #: Between which collectives, where that tells more than the phase: "before all_reduce 2 of group 1".
    slot: str | None = None
    module: str | None = None
    #: The job's line, from stacks taken while it was watched: "save at train.py:88".
    line: str | None = None
    #: What the named ranks take there and what the median of their peers does: seconds a costly step, or MiB.
    value: float | None = None
    median: float | None = None
    #: What the named ranks cost the job: in a step, in a step that they cost something, and as part of the job's time
    #: with its 95 % confidence interval.
    cost: float | None = None
    cost_each: float | None = None
    share: float | None = None
    share_low: float | None = None
    share_high: float | None = None
    #: In which part of the steps, every how many, and since which step.
    frequency: float | None = None
    period: int | None = None
    since: int | None = None
    #: The share that all differences between ranks cost together, and the smallest one that would have been seen.
    total_share: float | None = None
    smallest_visible: float | None = None
    #: How many steps were compared, and how long one takes.
    num_steps: int = 0
    step: float | None = None
    #: Difference in units of what the other ranks scatter.
    score: float | None = None
    #: What it rests on: waits, module times, memory, traits, collectives.
    evidence: str | None = None
    #: What other tables tell of the named rank and of its peers: {"cpu_share": [0.48, 0.97]}.
    beside: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.state][0]


@dataclass(frozen=True)
class Comparison:
    """A verdict and its table; `notes` are what has to be known beside."""

    verdict: Verdict
    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    notes: tuple[str, ...] = field(default=())
    #: What the verdict was made of, where that is the ranks' waits.
    study: Study | None = None


def help_text() -> str:
    """One line a code, as the help of `compare` has them."""
    meanings = {**{code: meaning for code, meaning in EXIT_CODES.values()}, **NO_ANSWER}
    return "\n".join(f"  {code}  {meaning}" for code, meaning in sorted(meanings.items()))
