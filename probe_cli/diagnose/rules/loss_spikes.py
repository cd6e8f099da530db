"""The loss spikes: single steps cost many times as much as those around them.

A spike is far above the 90th percentile of the 60 losses before it, and is over within ten steps. One can be chance;
several come from batches that are broken or of another kind, from a learning rate at the edge, or from fp16. What stays
below a third of the losses at first matters to nobody: Adam makes such spikes where hardly any loss is left. Nor do the
highest of losses that scatter widely, as those of few samples do: spikes have few others between them and the rest, and
those of small batches are higher by the root of how small they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import LATE, ROLLOUTS, Limits, Row, Rule, Threshold, is_late, of_each_learner

__all__ = ["RULE"]

SQL = f"""
WITH recent AS (SELECT step, loss, lr, grad_norm FROM python.steps WHERE isfinite(loss) ORDER BY step DESC LIMIT 500),
around AS (SELECT step, loss, quantile_cont(loss, 0.9) OVER before AS usual, count(*) OVER before AS num_before,
        median(loss) OVER (ORDER BY step ROWS BETWEEN 1 FOLLOWING AND 10 FOLLOWING) AS after
    FROM recent WINDOW before AS (ORDER BY step ROWS BETWEEN 60 PRECEDING AND 1 PRECEDING)),
early AS (SELECT median(loss) AS at_first FROM
    (SELECT loss FROM python.steps WHERE isfinite(loss) ORDER BY step LIMIT 30)),
spikes AS (SELECT step, loss, usual, loss / usual AS times, loss >= at_first / 3 AS is_high FROM around, early
    WHERE num_before >= 30 AND usual > 0 AND loss > 2 * usual AND after < 2 * usual ORDER BY times DESC LIMIT 80)
SELECT losses.*, recorded.*, models.*, (SELECT list(spikes) FROM spikes) AS spikes
FROM (SELECT count(*) AS losses, min(loss) AS lowest,
        count(*) FILTER (step > (SELECT min(step) + 30 FROM recent)) AS judged FROM recent) AS losses,
    (SELECT min(step) AS first, bool_and(counted) AS counted, {ROLLOUTS} AS rollouts,
        median(batch_size) FILTER (batch_size > 0) AS batch FROM python.steps) AS recorded,
    (SELECT count(DISTINCT module) FILTER (stage = 'step') AS optimizers, count(DISTINCT module) FILTER
        (stage = 'forward' AND module LIKE '%#%' AND module NOT LIKE '%.%') AS further_models
        FROM python.torch_trace) AS models
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["losses"] < limits["losses"]:
        raise NoEvidence(f"{row['losses']} losses recorded, {limits['losses']:.0f} needed: ask again later")
    if row["lowest"] < 0 or row["rollouts"] or row["optimizers"] > 1 or row["further_models"] > 2:
        raise NotApplicable("losses of both signs, of several optimizers or models, or of rollouts")
    above = row["spikes"] or ()
    times = limits["times"] * max(1.0, limits["batch"] / (row["batch"] or limits["batch"])) ** 0.5
    spikes = [one for one in above if one["is_high"] and one["times"] >= times and one["loss"] >= limits["loss"]]
    num_between = sum(limits["between"] <= one["times"] < times for one in above)
    if len(spikes) < limits["spikes"] or num_between > len(spikes):
        return
    worst = spikes[0]
    came_late = is_late(row, limits)
    high = sum(one["loss"] >= limits["small"] for one in spikes)
    if came_late and (
        worst["loss"] < limits["left"] or (worst["usual"] < limits["settled"] and high < limits["likely"])
    ):
        return
    is_sure = len(spikes) >= limits["likely"] and not (came_late and worst["loss"] < limits["small"])
    steps = sorted(one["step"] for one in spikes)
    yield Finding(
        f"the loss spikes: {len(spikes)} times in {row['losses']} steps, up to {worst['times']:.0f} times the usual",
        Certainty.LIKELY if is_sure else Certainty.POSSIBLE,
        since_step=steps[0],
        evidence=(
            f"step {worst['step']}: {worst['loss']:.4g}, where 9 of 10 losses are below {worst['usual']:.4g}",
            f"spikes at steps {', '.join(map(str, steps[-8:]))}",
        ),
        advice=(
            "look at the batches of these steps: wrong labels, empty or very long samples, another source",
            "clip gradients, so that one batch cannot throw the weights: clip_grad_norm_(parameters, 1.0)",
            "lower the learning rate, or lengthen the warm-up; bf16 instead of fp16",
        ),
        try_first='probe PID query "SELECT step, loss, lr, grad_norm FROM python.steps WHERE step IN'
        f' ({", ".join(map(str, steps[-8:]))})"',
    )


RULE = Rule(
    "loss-spikes",
    "numbers",
    "Does the loss spike?",
    SQL,
    of_each_learner(judge),
    (
        Threshold("times", 6.0, "height of a spike over the 90th percentile of the losses before it"),
        Threshold("batch", 32, "samples a step below which spikes have to be higher"),
        Threshold("between", 2.5, "height from which losses count as between; more of them than spikes are a scatter"),
        Threshold("loss", 1e-3, "height of a spike below which it matters to nobody: hardly any loss is left"),
        Threshold("spikes", 2, "spikes among the last 500 losses"),
        Threshold("likely", 4, "spikes among them that are hardly chance"),
        LATE,
        Threshold("small", 1.0, "height below which spikes of such a job are only possible"),
        Threshold("left", 0.5, "height below which such a job is not judged"),
        Threshold("settled", 0.1, "usual loss below which a few spikes of such a job, or small ones, are not, either"),
        Threshold("losses", 80, "losses needed to judge"),
    ),
)
