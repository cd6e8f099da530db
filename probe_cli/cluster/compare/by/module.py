"""`--by module`: which module takes longer on one rank than on the others.

Of sampled steps. On a GPU by the device's clock, otherwise by the host's, each module without those below it. A
module's backward may hold the wait for other ranks, so no rank is named by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe_cli.cluster.compare.comparison import Comparison, Verdict
from probe_cli.cluster.compare.facts import Facts, ModuleTime, Who, of_host
from probe_cli.cluster.compare.outliers import MIN_S, MIN_SCORE, MIN_SHARE, QUIET, SIGMA, median_of_others
from probe_cli.text import percent, seconds, sum_up

__all__ = ["NEEDS", "compare", "slow_module"]

NEEDS = ("modules", "steps")
#: Sampled steps that are needed.
MIN_SAMPLED = 3
#: Rows shown: what differs most.
MAX_ROWS = 20
#: The one below explains the one above when it has this part of its difference.
EXPLAINS = 0.8
_COLUMNS = {
    "module": "VARCHAR",
    "stage": "VARCHAR",
    "rank": "BIGINT",
    "host": "VARCHAR",
    "steps": "BIGINT",  # sampled ones
    "takes": "DOUBLE",
    "others": "DOUBLE",  # median of the other ranks
    "differs": "DOUBLE",
    "score": "DOUBLE",
    "clock": "VARCHAR",
}


def compare(facts: Sequence[Facts], num_steps: int) -> Comparison:
    """One row for each module, stage and rank, what differs most first."""
    known: dict[tuple[str, str], dict[Who, ModuleTime]] = {}
    for fact in facts:
        for time in fact.modules:
            known.setdefault((time.module, time.stage), {})[fact.who] = time
    durations = [fact.steps["duration"][fact.steps["sampled"].astype(bool)] for fact in facts if fact.steps]
    sampled = np.concatenate([np.zeros(0), *durations])
    step_s = float(np.median(sampled)) if len(sampled) else 0.0
    rows: list[list[object]] = []
    out: list[tuple[str, Who, float, float, float]] = []
    num_sampled = 0
    for (module, stage), by_rank in known.items():
        by_rank = {who: time for who, time in by_rank.items() if time.num_steps >= MIN_SAMPLED}
        if len(by_rank) < 2:
            continue
        num_sampled = max(num_sampled, *(time.num_steps for time in by_rank.values()))
        on_device = all(time.device is not None for time in by_rank.values())
        taken = {who: _taken(time, on_device) for who, time in by_rank.items()}
        others = median_of_others({who: middle for who, (middle, _, _) in taken.items()})
        noise = median_of_others({who: scatter for who, (_, _, scatter) in taken.items()})
        for who, (middle, low, _) in taken.items():
            differs = middle - others[who]
            score = differs / max(SIGMA * noise[who], QUIET * step_s, 1e-9)
            clock = "device" if on_device else "host"
            num = by_rank[who].num_steps
            rows.append([module, stage, who.rank, who.host, num, middle, others[who], differs, score, clock])
            enough = max(MIN_S, MIN_SHARE * step_s)
            if stage != "backward" and differs >= enough and low - others[who] >= enough / 2 and score >= MIN_SCORE:
                out.append((f"{module} {stage}", who, middle, others[who], score))
    rows.sort(key=lambda row: -abs(float(str(row[7]))))
    verdict = _verdict(facts, _deepest(out), rows, step_s, num_sampled)
    notes = [f"{fact.who} is not compared: it has recorded no module" for fact in facts if not fact.modules]
    return Comparison(verdict, tuple(_COLUMNS), tuple(_COLUMNS.values()), rows[:MAX_ROWS], tuple(notes))


def slow_module(facts: Sequence[Facts], who: Who) -> str | None:
    """The module and stage in which this rank is slow, as `compare` names it; None where it names none."""
    verdict = compare(facts, 0).verdict
    return verdict.where if verdict.ranks[:1] == (who.rank,) else None


def _taken(time: ModuleTime, on_device: bool) -> tuple[float, float, float]:
    """Median, low quantile and scatter on the clock that counts."""
    if on_device:
        return time.device or 0.0, time.device_low or 0.0, time.device_scatter or 0.0
    return time.host, time.host_low, time.host_scatter


def _deepest(out: list[tuple[str, Who, float, float, float]]) -> list[tuple[str, Who, float, float, float]]:
    """What differs most first; those above one that explains them are left out."""
    out.sort(key=lambda entry: entry[3] - entry[2])
    return [
        entry
        for entry in out
        if not any(
            other[1] == entry[1]
            and other[0].startswith(entry[0].partition(" ")[0] + ".")
            and other[2] - other[3] >= EXPLAINS * (entry[2] - entry[3])
            for other in out
        )
    ]


def _verdict(
    facts: Sequence[Facts],
    out: Sequence[tuple[str, Who, float, float, float]],
    rows: Sequence[Sequence[object]],
    step_s: float,
    num_sampled: int,
) -> Verdict:
    if not rows:
        text = f"not enough data: fewer than two ranks have a module in {MIN_SAMPLED} sampled steps (trace.every)"
        return Verdict("not enough data", text, num_steps=num_sampled, step=step_s or None)
    if not out:
        top = max(float(str(row[7])) for row in rows if row[1] != "backward")
        text = (
            f"no rank stands out: {len({(row[0], row[1]) for row in rows})} modules and stages compared over"
            f" {num_sampled} sampled steps of {seconds(step_s)}; the most that one takes longer than the median of the"
            f" others is {seconds(top)} ({percent(top / step_s if step_s else 0.0)} of a step)"
        )
        return Verdict("nobody", text, num_steps=num_sampled, step=step_s, evidence="module times")
    sentences = [
        f"{who}{of_host(who, facts)} is slow: {name} takes {seconds(value)} a step, the median rank's {seconds(other)}"
        for name, who, value, other, _ in out
    ]
    name, _, value, other, score = out[0]
    return Verdict(
        "stands out",
        sum_up(sentences),
        ranks=tuple(dict.fromkeys(entry[1].rank for entry in out)),
        where=name,
        value=value,
        median=other,
        num_steps=num_sampled,
        step=step_s,
        share=(value - other) / step_s if step_s else None,
        score=score,
        evidence="module times",
    )
