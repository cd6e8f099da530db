"""`--by memory`: who uses more, or less, than the others, and whose use grows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from probe_cli.cluster.compare.comparison import Comparison, Verdict
from probe_cli.cluster.compare.facts import Facts, Memory, Who, of_host
from probe_cli.cluster.compare.outliers import mad, median_of_others
from probe_cli.text import mebibytes, percent, sum_up

__all__ = ["NEEDS", "compare"]

NEEDS = ("memory",)
#: What makes a difference: such a part of what the others use, and so many MiB.
MIN_SHARE, MIN_MIB = 0.10, 64.0
MIN_SCORE = 3.0
_SIGMA, _QUIET = 1.4826, 0.01
_COLUMNS = {
    "memory": "VARCHAR",
    "rank": "BIGINT",
    "host": "VARCHAR",
    "steps": "BIGINT",
    "mib": "DOUBLE",  # median over the steps
    "others": "DOUBLE",  # median of the other ranks
    "differs": "DOUBLE",
    "score": "DOUBLE",
    "grows": "DOUBLE",  # from the first of the steps to the last
}
_WORDS = {
    "rss": "resident memory",
    "allocated": "allocated memory",
    "reserved": "memory reserved by torch's allocator",
    "peak_allocated": "peak of allocated memory",
}


def compare(facts: Sequence[Facts], num_steps: int) -> Comparison:
    """One row for each kind of memory and rank, what differs most first."""
    known: dict[str, dict[Who, Memory]] = {}
    for fact in facts:
        for memory in fact.memory:
            known.setdefault(memory.name, {})[fact.who] = memory
    if _is_same(known):
        known.pop("allocated")  # on a CPU it is the resident memory under another name
    rows: list[list[object]] = []
    out: list[tuple[float, str, Who, float, float, float]] = []
    for name, by_rank in known.items():
        if len(by_rank) < 2:
            continue
        values = {who: memory.median for who, memory in by_rank.items()}
        others = median_of_others(values)
        for who, value in values.items():
            rest = [other for else_, other in values.items() if else_ != who]
            differs = value - others[who]
            score = differs / max(_SIGMA * mad(rest), _QUIET * others[who], 1.0)
            num, grows = by_rank[who].num_steps, by_rank[who].last - by_rank[who].first
            rows.append([name, who.rank, who.host, num, value, others[who], differs, score, grows])
            enough = differs >= MIN_MIB and differs >= MIN_SHARE * others[who] and score >= MIN_SCORE
            if enough:
                out.append((differs, name, who, value, others[who], score))
    rows.sort(key=lambda row: (str(row[0]), -abs(float(str(row[6])))))
    notes = [f"{fact.who} is not compared: it has recorded no step" for fact in facts if not fact.memory]
    return Comparison(_verdict(facts, out, rows), tuple(_COLUMNS), tuple(_COLUMNS.values()), rows, tuple(notes))


def _is_same(known: dict[str, dict[Who, Memory]]) -> bool:
    rss, allocated = known.get("rss"), known.get("allocated")
    return (
        rss is not None
        and allocated is not None
        and rss.keys() == allocated.keys()
        and all(abs(rss[who].median - allocated[who].median) < 1e-6 for who in rss)
    )


def _verdict(
    facts: Sequence[Facts],
    out: list[tuple[float, str, Who, float, float, float]],
    rows: Sequence[Sequence[object]],
) -> Verdict:
    num_steps = min((memory.num_steps for fact in facts for memory in fact.memory), default=0)
    if not rows:
        text = f"not enough data: {sum(bool(fact.memory) for fact in facts)} of {len(facts)} ranks have recorded steps"
        return Verdict("not enough data", text, num_steps=num_steps)
    if not out:
        top = max(rows, key=lambda row: float(str(row[6])) / max(1.0, float(str(row[5]))))
        more = float(str(top[6])) / max(1.0, float(str(top[5])))
        text = (
            f"no rank stands out: memory of {len({row[1] for row in rows})} ranks compared over {num_steps} steps; the"
            f" most that one has more than the median of the others is {percent(more)} ({top[0]}, rank {top[1]})"
        )
        return Verdict("nobody", text, num_steps=num_steps, evidence="memory")
    out.sort(key=lambda entry: -entry[0])
    sentences = [
        f"{who}{of_host(who, facts)} uses more than the others: {mebibytes(value)} of {_WORDS[name]}, the median of the"
        f" others {mebibytes(other)}"
        for _, name, who, value, other, _ in out
    ]
    differs, name, _who, value, other, score = out[0]
    return Verdict(
        "stands out",
        sum_up(sentences),
        ranks=tuple(dict.fromkeys(entry[2].rank for entry in out)),
        where=name,
        value=value,
        median=median([other]),
        num_steps=num_steps,
        share=differs / other if other else None,
        score=score,
        evidence="memory",
    )
