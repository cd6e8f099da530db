"""`--by collective`: the same verdict as by step; for each group and operation, who comes last and who waits.

Who comes last to a collective may have been held up by another rank before: the verdict is not made of this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np

from probe_cli.cluster.compare.comparison import Comparison
from probe_cli.cluster.compare.facts import Facts, Who
from probe_cli.cluster.compare.outliers import median_of_others
from probe_cli.cluster.compare.study import Study, study
from probe_cli.cluster.compare.verdict import judge, named

__all__ = ["NEEDS", "compare"]

NEEDS = ("steps", "calls", "recent", "groups")
#: A collective is taken when such a part of the ranks that the group seems to have is known to have called it.
NEARLY_ALL = 0.75
_COLUMNS = {
    "group": "VARCHAR",
    "op": "VARCHAR",
    "rank": "BIGINT",
    "host": "VARCHAR",
    "calls": "BIGINT",
    "behind": "DOUBLE",  # the median of the others when it calls
    "last": "DOUBLE",  # in which part of them it comes last
    "waits": "DOUBLE",  # for the last to come
    "waited": "DOUBLE",  # inside wait(), of those that Python called
}


def compare(facts: Sequence[Facts], num_steps: int) -> Comparison:
    """One row for each group, operation and rank; those that come late first."""
    found = study(facts, num_steps)
    met, waited = _met(found)
    rows: list[list[object]] = []
    for (group, op), calls in met.items():
        behind: dict[Who, list[float]] = defaultdict(list)
        waits: dict[Who, list[float]] = defaultdict(list)
        last: dict[Who, int] = defaultdict(int)
        for starts in calls:
            others, end = median_of_others(starts), max(starts.values())
            last[max(starts, key=lambda who: starts[who])] += 1
            for who, start in starts.items():
                behind[who].append(start - others[who])
                waits[who].append(end - start)
        for who, late in behind.items():
            mine = waited.get((who, group, op))
            times = (median(late), last[who] / len(late), median(waits[who]), median(mine) if mine else None)
            rows.append([group, op, who.rank, who.host, len(late), *times])
    rows.sort(key=lambda row: -float(str(row[5])))
    verdict = judge(found, named(found))
    return Comparison(verdict, tuple(_COLUMNS), tuple(_COLUMNS.values()), rows, found.notes, found)


def _met(
    found: Study,
) -> tuple[dict[tuple[str, str], list[dict[Who, float]]], dict[tuple[Who, str, str], list[float]]]:
    """By group and operation, when each rank came to each of the collectives that nearly all of its ranks are known to
    have come to; and what each rank waited in those that Python called."""
    starts: dict[tuple[str, int], dict[Who, float]] = defaultdict(dict)
    ops: dict[tuple[str, int], str] = {}
    waited: dict[tuple[Who, str, str], list[float]] = defaultdict(list)
    for at, fact in enumerate(found.facts):
        offset = fact.clock.offset if fact.clock is not None else 0.0
        numbers = found.analysis.steps - found.analysis.shifts[at]
        if not fact.calls:
            continue
        wanted = np.isin(fact.calls["step"], numbers) & (fact.calls["seq"] >= 0)
        columns = (fact.calls[name][wanted].tolist() for name in ("group", "seq", "op", "start", "wait"))
        for group, seq, op, start, wait in zip(*columns, strict=True):
            starts[group, seq].setdefault(fact.who, start - offset)
            ops[group, seq] = op
            if wait == wait:
                waited[fact.who, group, op].append(wait)
    most: dict[str, int] = defaultdict(int)
    for (group, _), by_rank in starts.items():
        most[group] = max(most[group], len(by_rank))
    met: dict[tuple[str, str], list[dict[Who, float]]] = defaultdict(list)
    for key, by_rank in starts.items():
        if len(by_rank) >= max(2, NEARLY_ALL * most[key[0]]):
            met[key[0], ops[key]].append(by_rank)
    return met, waited
