"""`--by collective`: the same verdict as by step; for each group and operation, who comes last, who waits, and how long
the rest takes.

Who comes last to a collective may have been held up by another rank before: the verdict is not made of this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from probe_agent.units import mib
from probe_cli.cluster.compare.comparison import Comparison
from probe_cli.cluster.compare.facts import Facts, Who
from probe_cli.cluster.compare.named import named
from probe_cli.cluster.compare.outliers import median_of_others
from probe_cli.cluster.compare.study import Study, study
from probe_cli.cluster.compare.verdict import judge

__all__ = ["NEEDS", "compare"]

NEEDS = ("steps", "calls", "recent", "groups")
#: A collective is taken when such a part of the ranks that the group seems to have is known to have called it.
NEARLY_ALL = 0.75
#: Who waits later than this has done something else, and may have come when it was over.
AT_ONCE_S = 1e-3
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
    "transfer": "DOUBLE",  # from when the last came until it was over here, where somebody stood still for that
}
#: Where the rows of calls have their bytes: what a rank puts in, a step; and what its links move in a second meanwhile.
_TRAFFIC = {"mebibytes": "DOUBLE", "bandwidth": "DOUBLE"}
#: What goes over each link of a ring for one byte put in, by the number of ranks, as nccl-tests count it. Of gather,
#: scatter and broadcast it is what the root does that counts, and that is not known.
_ON_THE_BUS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda num: 2 * (num - 1) / num,
    "all_gather": lambda num: num - 1,
    "reduce_scatter": lambda num: (num - 1) / num,
    "all_to_all": lambda num: (num - 1) / num,
}


@dataclass
class _Met:
    """One collective: what each rank has told of it."""

    op: str = ""
    starts: dict[Who, float] = field(default_factory=dict)
    #: When it was over, for those that stood still until then.
    ends: dict[Who, float] = field(default_factory=dict)
    waits: dict[Who, float] = field(default_factory=dict)
    bytes: dict[Who, float] = field(default_factory=dict)

    def transfer(self, who: Who) -> float | None:
        """From when the last rank came until it was over for `who`."""
        return max(0.0, self.ends[who] - max(self.starts.values())) if who in self.ends else None


def compare(facts: Sequence[Facts], num_steps: int) -> Comparison:
    """One row for each group, operation and rank; those that come late first."""
    found = study(facts, num_steps)
    has_bytes = any("bytes" in fact.calls for fact in found.facts)
    num_compared = max(1, len(found.analysis.steps))
    rows: list[list[object]] = []
    for (group, op), collectives in _met(found).items():
        by_rank: dict[Who, list[tuple[_Met, float, bool]]] = defaultdict(list)
        for one in collectives:
            others, last = median_of_others(one.starts), max(one.starts, key=lambda who: one.starts[who])
            for who, start in one.starts.items():
                by_rank[who].append((one, start - others[who], who == last))
        for who, calls in by_rank.items():
            waits = [max(one.starts.values()) - one.starts[who] for one, _, _ in calls]
            waited = [one.waits[who] for one, _, _ in calls if who in one.waits]
            transfer = [took for one, _, _ in calls if (took := one.transfer(who)) is not None]
            row: list[object] = [group, op, who.rank, who.host, len(calls), median(late for _, late, _ in calls)]
            row += [sum(is_last for _, _, is_last in calls) / len(calls), median(waits)]
            row += [median(waited) if waited else None, median(transfer) if transfer else None]
            if has_bytes:
                put_in = sum(one.bytes.get(who, 0.0) for one, _, _ in calls)
                row += [mib(put_in / num_compared), _bandwidth(op, who, [one for one, _, _ in calls])]
            rows.append(row)
    rows.sort(key=lambda row: -float(str(row[5])))
    verdict = judge(found, named(found))
    columns = _COLUMNS | (_TRAFFIC if has_bytes else {})
    return Comparison(verdict, tuple(columns), tuple(columns.values()), rows, found.notes, found)


def _bandwidth(op: str, who: Who, collectives: Sequence[_Met]) -> float | None:
    """MiB a second over a link of the ring; None for what goes no such way, or where no transfer is known."""
    moved = taken = 0.0
    for one in collectives:
        took, num = one.transfer(who), len(one.starts)
        if op in _ON_THE_BUS and took and who in one.bytes:
            moved += one.bytes[who] * _ON_THE_BUS[op](num)
            taken += took
    return mib(moved / taken) if taken else None


def _met(found: Study) -> dict[tuple[str, str], list[_Met]]:
    """By group and operation, the collectives that nearly all of their ranks are known to have come to."""
    known: dict[tuple[str, int], _Met] = defaultdict(_Met)
    for at, fact in enumerate(found.facts):
        offset = fact.offset
        numbers = found.analysis.steps - found.analysis.shifts[at]
        if not fact.calls:
            continue
        wanted = np.isin(fact.calls["step"], numbers) & (fact.calls["seq"] >= 0)
        names = ("group", "seq", "op", "start", "ended", "wait", "bytes")
        told = fact.calls if "bytes" in fact.calls else {**fact.calls, "bytes": np.zeros(len(wanted))}
        columns = (told[name][wanted].tolist() for name in names)
        for group, seq, op, start, ended, wait, num_bytes in zip(*columns, strict=True):
            one = known[group, seq]
            if fact.who in one.starts:
                continue
            one.op = op
            one.starts[fact.who], one.bytes[fact.who] = start - offset, num_bytes
            if wait == wait:
                one.waits[fact.who] = wait
                if wait > 0 and ended - wait - start < AT_ONCE_S:
                    one.ends[fact.who] = ended - offset
    most: dict[str, int] = defaultdict(int)
    for (group, _), one in known.items():
        most[group] = max(most[group], len(one.starts))
    met: dict[tuple[str, str], list[_Met]] = defaultdict(list)
    for (group, _), one in known.items():
        if len(one.starts) >= max(2, NEARLY_ALL * most[group]):
            met[group, one.op].append(one)
    return met
