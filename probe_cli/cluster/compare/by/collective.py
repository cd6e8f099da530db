"""`--by collective`: for each group and operation, who comes last and who waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from probe_cli.cluster.compare.arrivals import by_collective
from probe_cli.cluster.compare.clocks import uncertainty_between
from probe_cli.cluster.compare.comparison import Comparison, Verdict
from probe_cli.cluster.compare.facts import Facts, Who
from probe_cli.cluster.compare.standing_out import (
    MIN_SHARE,
    MIN_STEPS,
    Standing,
    median_of_others,
    standings,
    those_that_stand_out,
)
from probe_cli.cluster.compare.straggler import find, of_host
from probe_cli.cluster.compare.words import percent, seconds, sum_up

__all__ = ["NEEDS", "compare"]

NEEDS = ("steps", "calls", "recent")
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
    "score": "DOUBLE",
}


def compare(facts: Sequence[Facts], num_steps: int) -> Comparison:
    """One row for each group, operation and rank; those that come late first."""
    found = find(facts, num_steps)
    wanted = set(found.steps)
    met: dict[tuple[str, str], list[dict[Who, float]]] = defaultdict(list)
    for (group, _), collective in by_collective(found.facts).items():
        if collective.step in wanted:
            met[group, collective.op].append(collective.starts)
    waited = _waited(found.facts, wanted)
    rows: list[list[object]] = []
    late: list[tuple[str, str, Standing[Who], float]] = []
    top = 0.0
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
        stood = standings(behind, found.step_s)
        top = max([top, *(standing.effect for standing in stood)])
        late += [
            (group, op, standing, last[standing.key] / standing.num_steps) for standing in those_that_stand_out(stood)
        ]
        for standing in stood:
            who, num = standing.key, standing.num_steps
            mine = waited.get((who, group, op))
            times = (standing.effect, last[who] / num, median(waits[who]), median(mine) if mine else None)
            rows.append([group, op, who.rank, who.host, num, *times, standing.score])
    late.sort(key=lambda entry: -entry[2].effect)
    notes = [note for note in found.notes if "not compared" in note]
    return Comparison(
        _verdict(found.facts, found.step_s, late, top, met, found.verdict),
        tuple(_COLUMNS),
        tuple(_COLUMNS.values()),
        rows,
        tuple(notes),
    )


def _verdict(
    facts: Sequence[Facts],
    step_s: float,
    late: Sequence[tuple[str, str, Standing[Who], float]],
    top: float,
    met: dict[tuple[str, str], list[dict[Who, float]]],
    of_steps: Verdict,
) -> Verdict:
    num = sum(map(len, met.values()))
    if of_steps.state == "not enough data":
        return of_steps
    if num < MIN_STEPS:
        text = f"not enough data: {num} collectives are known that ranks have in common, {MIN_STEPS} are needed"
        return Verdict("not enough data", text, num_steps=of_steps.num_steps, step=step_s)
    unsure = uncertainty_between(facts)
    if unsure is None or unsure > max(MIN_SHARE * step_s, top / 2):
        apart = "an unknown time" if unsure is None else seconds(unsure)
        text = f"not enough data: the hosts' clocks may be {apart} apart, more than what is to be seen"
        return Verdict("not enough data", text, num_steps=of_steps.num_steps, step=step_s)
    if not late:
        text = (
            f"no rank stands out: {len(facts)} ranks met in {num} collectives; the most that one is behind the median"
            f" of the others is {seconds(top)} ({percent(top / step_s)} of a step)"
        )
        return Verdict("nobody", text, num_steps=of_steps.num_steps, step=step_s, evidence="collectives")
    sentences = [
        f"{standing.key}{of_host(standing.key, facts)} comes {seconds(standing.effect)} after the others to {op} of"
        f" group {group}, last to {percent(share)} of them"
        for group, op, standing, share in late
    ]
    group, op, first, _ = late[0]
    return Verdict(
        "stands out",
        sum_up(sentences),
        ranks=tuple(dict.fromkeys(standing.key.rank for _, _, standing, _ in late)),
        where=f"{op} of group {group}",
        value=first.effect,
        num_steps=of_steps.num_steps,
        step=step_s,
        share=first.share,
        score=first.score,
        evidence="collectives",
    )


def _waited(facts: Sequence[Facts], steps: set[int]) -> dict[tuple[Who, str, str], list[float]]:
    found: dict[tuple[Who, str, str], list[float]] = defaultdict(list)
    for fact in facts:
        for call in fact.calls:
            if call.wait is not None and call.step in steps:
                found[fact.who, call.group, call.op].append(call.wait)
    return found
