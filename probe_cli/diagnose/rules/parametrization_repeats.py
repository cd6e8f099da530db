"""A parametrized weight is computed anew many times in one forward.

`torch.nn.utils.parametrizations` (orthogonal, spectral_norm, weight_norm) and `register_parametrization` make a weight
from what is trained each time that it is read. A cell that is called for each time step reads it each time, and
backward goes through each: of a recurrent net with an orthogonal weight that was two thirds of the step. The weight is
the same for the whole forward, and `parametrize.cached()` computes it once. Told by the sampled steps, in which such a
parametrization is called several times for each call of the model, and takes its part of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = r"""
WITH known AS (SELECT step, duration FROM python.steps),
models AS (SELECT step, count(*) AS calls FROM python.torch_trace
    WHERE stage = 'forward' AND phase = 'train' AND NOT contains(module, '.') GROUP BY step),
calls AS (SELECT step, module, count(*) FILTER (stage = 'forward') AS calls,
        sum(duration) FILTER (stage = 'forward') AS forward, sum(duration) FILTER (stage = 'backward') AS backward
    FROM python.torch_trace WHERE regexp_matches(module, '\.parametrizations\.\w+\.\d+$') AND phase = 'train'
    GROUP BY ALL)
SELECT calls.module, count(*) AS steps, median(calls.calls / models.calls) AS calls,
    avg(forward / known.duration) AS forward, coalesce(avg(backward / known.duration), 0) AS backward,
    avg(known.duration) AS duration
FROM calls JOIN models USING (step) JOIN known USING (step) WHERE calls.calls > 0
GROUP BY calls.module ORDER BY sum(forward) DESC
"""
#: The part of its name that torch puts between the module and the weight.
_AMID = ".parametrizations."


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no sampled step has called a parametrization")
    if rows[0]["steps"] < limits["steps"]:
        raise NoEvidence("too few sampled steps are recorded: ask again later, or `probe PID config trace.every=5`")
    repeated = [row for row in rows if row["calls"] >= limits["calls"]]
    saved = {row["module"]: _share(row) * (1 - 1 / row["calls"]) for row in repeated}
    share = min(1.0, sum(saved.values()))
    if not repeated or share < limits["share"]:
        return
    worst = max(repeated, key=lambda row: saved[row["module"]])
    yield Finding(
        f"a parametrized weight is computed {worst['calls']:.0f} times in each forward: {percent(share)} of the time",
        Certainty.LIKELY,
        cost_s=share * worst["duration"],
        share=share,
        where=_weight(worst["module"]),
        evidence=tuple(
            f"{_weight(row['module'])}: {row['calls']:.0f} times for each call of the model, {percent(_share(row))} of"
            f" {row['steps']} sampled steps"
            for row in repeated[:3]
        ),
        advice=(
            "compute it once: call the model under torch.nn.utils.parametrize.cached()",
            "or read the weight once before the loop over time steps, and use torch.nn.functional.linear with it",
        ),
        try_first="with torch.nn.utils.parametrize.cached(): loss = model(batch)",
    )


def _share(row: Row) -> float:
    return float(row["forward"] + row["backward"])


def _weight(module: str) -> str:
    """Return the weight of `Net.rec.parametrizations.weight.0`: `Net.rec.weight`."""
    owner, _, weight = module.partition(_AMID)
    return f"{owner}.{weight.partition('.')[0]}"


RULE = Rule(
    "parametrization-repeats",
    "speed",
    "Is a parametrized weight computed many times in each forward?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("calls", 4, "times that it is computed for each call of the model"),
        Threshold("share", 0.1, "share of the step that all but the first take"),
        Threshold("steps", 3, "sampled steps needed to judge"),
    ),
    explains=("host-bound", "slower-than-best"),
)
