"""The loss jumps from step to step, or comes and goes in waves, by far more than its batches explain.

Each loss is held against the mean of its two neighbours, so that a steep fall does not count. The mean of B samples
scatters by about 1/sqrt(B) by itself: small batches are allowed that much and more. A loss that goes up and down in
turns comes from steps that are too long, unless hardly anything is left of it: Adam does that to one of 1e-7. So do
waves: of parts of five losses, the logarithms of the medians leave their straight line by much, on both sides of it and
again and again, and by more than the five scatter: the logarithms of losses near zero are far apart by themselves.
Losses of both signs, several optimizers, rollouts, and goals that another model gives in each step are not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import GOALS, LATE, ROLLOUTS, Limits, Row, Rule, Threshold, is_late, of_each_learner

__all__ = ["RULE"]

SQL = f"""
WITH recent AS (SELECT step, loss, lr FROM python.steps WHERE isfinite(loss) ORDER BY step DESC LIMIT 100),
beside AS (SELECT step, loss, lag(loss) OVER w AS before, lead(loss) OVER w AS after, lag(loss, 2) OVER w AS earlier
    FROM recent WINDOW w AS (ORDER BY step)),
jumps AS (SELECT (loss - (before + after) / 2) / nullif(abs(before + loss + after) / 3, 0) AS jump,
    loss - before AS rise, before - earlier AS rise_before FROM beside WHERE before IS NOT NULL AND after IS NOT NULL),
numbered AS (SELECT loss, row_number() OVER (ORDER BY step) AS nth FROM recent WHERE loss > 0),
parts AS (SELECT nth // 5 AS part, ln(median(loss)) AS loss, stddev(ln(loss)) AS within FROM numbered
    GROUP BY ALL HAVING count(*) = 5),
line AS (SELECT regr_slope(loss, part) AS slope, regr_intercept(loss, part) AS intercept FROM parts),
apart AS (SELECT part, loss - intercept - slope * part AS apart FROM parts, line),
crossed AS (SELECT apart, sign(apart) != lag(sign(apart)) OVER (ORDER BY part) AS crosses FROM apart)
SELECT losses.*, jumped.*, samples.*, waves.*, early.*,
    (SELECT count(DISTINCT module) FROM python.torch_trace WHERE stage = 'step') AS optimizers,
    (SELECT any_value(input_shapes) FROM python.torch_trace
     WHERE stage = 'forward' AND phase = 'train' AND NOT contains(module, '.')) AS shapes
FROM (SELECT count(*) AS losses, avg(loss) AS mean, min(loss) AS lowest, max(loss) AS highest, stddev(loss) AS scatter,
        arg_max(lr, step) AS lr FROM recent) AS losses,
    (SELECT stddev(jump) FILTER (abs(jump) <= (SELECT quantile_cont(abs(jump), 0.95) FROM jumps)) * sqrt(2 / 3) AS jump,
        corr(rise, rise_before) AS turns FROM jumps) AS jumped,
    (SELECT stddev(apart) AS waves, count(*) FILTER (crosses) AS crossings,
        (SELECT median(within) FROM parts) AS within FROM crossed) AS waves,
    (SELECT median(loss) AS at_first FROM
        (SELECT loss FROM python.steps WHERE isfinite(loss) ORDER BY step LIMIT 30)) AS early,
    (SELECT median(batch_size) FILTER (batch_size > 0) AS batch, greatest({ROLLOUTS}, {GOALS}::INTEGER) AS rollouts,
        min(step) AS first, bool_and(counted) AS counted FROM python.steps) AS samples
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["losses"] < limits["losses"]:
        raise NoEvidence(f"{row['losses']} losses recorded, {limits['losses']:.0f} needed: ask again later")
    if row["lowest"] <= 0 or row["optimizers"] > 1 or row["rollouts"]:
        raise NotApplicable("losses of both signs, of several optimizers, of rollouts, or of what another model says")
    batch = row["batch"] or _first_size(row["shapes"]) or 8
    takes_turns = row["turns"] is not None and row["turns"] < -limits["turns"] and row["mean"] >= limits["gone"]
    allowed = limits["ratio"] if takes_turns else max(limits["ratio"], limits["noise"] / batch**0.5)
    is_left = row["mean"] >= limits["left"] * row["at_first"]
    is_left = is_left and not (is_late(row, limits) and row["mean"] < limits["small"])
    jumps = (is_left or takes_turns) and row["jump"] is not None and row["jump"] >= allowed
    comes_and_goes = is_left and row["waves"] is not None and row["crossings"] >= limits["crossings"]
    by_chance = max(limits["waves"], limits["noise"] / batch**0.5, limits["apart"] * (row["within"] or 0.0))
    if not jumps and not (comes_and_goes and row["waves"] >= by_chance):
        return
    how = "goes up and down in turns" if takes_turns else "is volatile"
    told = f"the loss {how}: it changes by {row['jump']:.0%} of its value from step to step"
    yield Finding(
        told if jumps else f"the loss comes and goes in waves of {row['waves']:.0%} of its value",
        Certainty.LIKELY if takes_turns else Certainty.POSSIBLE,
        evidence=(
            f"standard deviation over mean of the last {row['losses']} losses: {row['scatter'] / row['mean']:.2f}"
            f" ({row['lowest']:.4g} to {row['highest']:.4g})",
            f"batches of {batch:.0f} explain up to {limits['noise'] / batch**0.5:.0%}; learning rate"
            f" {row['lr'] or 0:.3g}",
        ),
        advice=(
            "lower the learning rate, by 2 to 10 times",
            "enlarge the batch, or accumulate gradients",
            "clip gradients: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            "shuffle the data, and look at the batches with the highest losses",
        ),
        try_first="for group in optimizer.param_groups: group['lr'] /= 3",
    )


def _first_size(shapes: str | None) -> int | None:
    """Return the first size of the first tensor in `32x64, 32x8`."""
    size = (shapes or "").partition(",")[0].partition("x")[0]
    return int(size) if size.isdigit() and int(size) > 0 else None


RULE = Rule(
    "loss-volatile",
    "numbers",
    "Does the loss jump from step to step, or come and go?",
    SQL,
    of_each_learner(judge),
    (
        Threshold("ratio", 0.2, "change from step to step as a share of the loss"),
        Threshold("noise", 5.0, "scatter of a loss of one sample, as a share of it: squares of what has heavy tails"),
        Threshold("turns", 0.8, "correlation of a rise with the fall before it from which the loss goes up and down"),
        Threshold("waves", 0.4, "deviation of the medians of five losses from an exponential curve, as a share of it"),
        Threshold("apart", 1.0, "the same as a multiple of the scatter of the five, of which chance makes 0.6"),
        Threshold("crossings", 4, "times that they cross that curve"),
        Threshold(
            "left", 0.05, "loss, as a share of the losses at first, below which jumps and waves matter to nobody"
        ),
        LATE,
        Threshold("small", 0.1, "mean of the loss below which such a job is not judged"),
        Threshold("gone", 1e-3, "mean of the loss below which it may go up and down in turns"),
        Threshold("losses", 60, "losses needed to judge"),
    ),
)
