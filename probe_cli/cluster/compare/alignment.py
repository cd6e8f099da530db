"""Which step of one rank is which step of another.

Optimizers that keep a count (Adam) give the number that all ranks share. Those that do not (plain SGD) are counted from
where the recorder came in, which is somewhere else on each rank. Collectives have the same number in their group on all
ranks: where two ranks called the same ones in steps of other numbers, one's steps are shifted to the other's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from .facts import Facts, Who

__all__ = ["aligned", "common_steps", "shifts"]

#: So many common collectives, and such a part of them that agree, move a rank's steps.
MIN_VOTES, AGREE = 5, 0.6


def shifts(facts: Sequence[Facts]) -> dict[Who, int]:
    """What to add to each rank's step numbers; ranks without common collectives keep theirs."""
    waiting = sorted(facts, key=lambda fact: -len(fact.calls))
    found: dict[Who, int] = {}
    step_of: dict[tuple[str, int], int] = {}
    while waiting:
        settled = [fact for fact in waiting if _votes(fact, step_of)]
        # Nobody left shares a collective with those who are settled: somebody else begins.
        for fact in settled or waiting[:1]:
            votes = _votes(fact, step_of)
            shift, num = votes.most_common(1)[0] if votes else (0, 0)
            if num < MIN_VOTES or num < AGREE * sum(votes.values()):
                shift = 0
            found[fact.who] = shift
            for call in fact.calls:
                step_of.setdefault(call.key, call.step + shift)
            waiting.remove(fact)
            if not settled:
                break
    return found


def _votes(fact: Facts, step_of: dict[tuple[str, int], int]) -> Counter[int]:
    return Counter(step_of[call.key] - call.step for call in fact.calls if call.key in step_of)


def aligned(facts: Sequence[Facts]) -> list[Facts]:
    """The same facts with step numbers that mean the same step."""
    by = shifts(facts)
    return [fact if by[fact.who] == 0 else _shifted(fact, by[fact.who]) for fact in facts]


def _shifted(fact: Facts, by: int) -> Facts:
    return replace(
        fact,
        steps=tuple(replace(step, number=step.number + by) for step in fact.steps),
        calls=tuple(replace(call, step=call.step + by) for call in fact.calls),
    )


def common_steps(facts: Sequence[Facts], num: int) -> list[int]:
    """The newest `num` steps that at least half of the ranks have, two at least."""
    counted = Counter(number for fact in facts for number in {step.number for step in fact.steps})
    needed = max(2, (len(facts) + 1) // 2)
    return sorted(number for number, ranks in counted.items() if ranks >= needed)[-num:]
