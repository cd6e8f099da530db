"""Clipping of gradients is always on, or missing where it is needed.

`clip_grad_norm_` is meant for the odd step. Where every step is cut down to a small part of its gradient, the learning
rate is no longer what it says, and a gradient that grows is not seen. Where nothing clips, and single gradients are
many times as long as the usual one, one batch can throw the weights. A policy that has nearly settled has such
gradients too, when it draws a rare action, and is no worse for it: so the loss has to be higher after the jump. PPO,
DQN and their kin clip every step to a small norm, as a loss of values far from 0 makes them long: that is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import GOALS, ROLLOUTS, Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = f"""
WITH norms AS (SELECT step, grad_norm, clip_norm FROM python.steps WHERE isfinite(grad_norm)
    ORDER BY step DESC LIMIT 300),
around AS (SELECT step, grad_norm,
        greatest(median(grad_norm) OVER (ORDER BY step ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING),
            median(grad_norm) OVER (ORDER BY step ROWS BETWEEN 1 FOLLOWING AND 5 FOLLOWING)) AS beside,
        row_number() OVER (ORDER BY step) AS number FROM norms),
jumps AS (SELECT grad_norm AS highest, step AS jumped, beside FROM around WHERE number > 3 AND beside > 0
    ORDER BY grad_norm / beside DESC LIMIT 1),
told AS (SELECT loss, step > jumped AS is_after FROM python.steps JOIN jumps ON step <> jumped WHERE isfinite(loss)
    QUALIFY row_number() OVER (PARTITION BY is_after ORDER BY abs(step - jumped)) <= 20),
losses AS (SELECT quantile_cont(loss, 0.9) FILTER (NOT is_after) AS before, median(loss) FILTER (is_after) AS after,
        least(count(*) FILTER (NOT is_after), count(*) FILTER (is_after)) AS losses FROM told)
SELECT totals.*, jumps.*, losses.*, (SELECT {ROLLOUTS} FROM python.steps) > 0 OR {GOALS} AS learns_values
FROM (SELECT count(*) AS norms, count(clip_norm) AS clips, median(clip_norm) AS clip_norm, median(grad_norm) AS usual,
    count(*) FILTER (grad_norm > clip_norm) AS clipped, min(step) AS first FROM norms) AS totals
LEFT JOIN jumps ON true LEFT JOIN losses ON true
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["norms"] < limits["norms"]:
        raise NotApplicable(f"{row['norms']} gradient norms recorded; more: `probe PID config trace.deep_every=1`")
    yield from (_always if row["clips"] else _missing)(row, limits)


def _missing(row: Row, limits: Limits) -> Iterable[Finding]:
    if row["highest"] is None or row["highest"] <= max(10.0, limits["outlier"] * row["beside"]):
        return
    if row["losses"] < limits["losses"] or row["after"] <= row["before"]:
        return
    times = row["highest"] / row["beside"]
    yield Finding(
        f"gradients jump to {row['highest']:.3g}, and nothing clips them",
        Certainty.POSSIBLE,
        where="missing",
        since_step=row["jumped"],
        evidence=(
            f"usual norm {row['usual']:.3g}; at step {row['jumped']} {times:.0f} times those beside it;"
            f" {row['norms']} norms",
            f"median loss after it {row['after']:.3g}, before it {row['before']:.3g} or less in nine of ten steps",
        ),
        advice=(
            "clip between backward and the optimizer's step, after scaler.unscale_(optimizer) with fp16",
            "look at the batch of that step",
        ),
        try_first=f"torch.nn.utils.clip_grad_norm_(model.parameters(), {3 * row['usual']:.2g})",
    )


def _always(row: Row, limits: Limits) -> Iterable[Finding]:
    share = row["clipped"] / row["clips"]
    times = row["usual"] / row["clip_norm"] if row["clip_norm"] else 0.0
    if row["learns_values"] or share < limits["share"] or times < limits["times"]:
        return
    yield Finding(
        f"gradients are clipped in {percent(share)} of the steps, to 1/{times:.0f} of their length",
        Certainty.POSSIBLE,
        where="always",
        since_step=row["first"],
        evidence=(f"usual norm {row['usual']:.3g}, clipped to {row['clip_norm']:.3g}; {row['norms']} norms",),
        advice=(
            f"raise max_norm to about the usual norm, {row['usual']:.2g}, and lower the learning rate if it then jumps",
            "find out why gradients are that long: `probe PID grads`; a sum where a mean was meant, a loss that is"
            " scaled, gradients that are never cleared",
        ),
        try_first=f"torch.nn.utils.clip_grad_norm_(model.parameters(), {row['usual']:.2g})",
    )


RULE = Rule(
    "clipping",
    "numbers",
    "Is clipping of gradients always on, or missing?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.95, "share of the steps that are clipped"),
        Threshold("times", 20.0, "usual norm over max_norm"),
        Threshold("outlier", 50.0, "highest norm over the usual one, in a job that does not clip"),
        Threshold("losses", 5, "losses before and after a jump that tell whether it did harm"),
        Threshold("norms", 10, "norms needed to judge"),
    ),
    explains=(
        "loss-at-chance",
        "loss-spikes",
    ),
)
