"""The learning rate is far above what its optimizer works with.

Adam and its kin move every weight by about the learning rate in each update, whatever the gradient is, and weights
begin at 0.01 to 0.2: a learning rate of 0.5 throws away in one update what they were initialised to. Afterwards units
are saturated or dead, gradients vanish, and the loss stays high or comes and goes: such a rate is named in any case. A
lower one, and one of SGD, which moves a weight by the learning rate times its gradient, is named where the loss was
better before; where it is merely flat, as one that has converged is, too, only with Adam in a network of many modules.
Optimizers that scale the learning rate themselves (Prodigy, LARS, Adafactor) are not judged, nor is a loss of which
hardly anything is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
WITH recorded AS (SELECT step, loss, lr, ntile(5) OVER (ORDER BY step) AS part FROM python.steps
    WHERE isfinite(loss) AND lr IS NOT NULL),
parts AS (SELECT part, median(loss) AS loss FROM recorded GROUP BY part)
SELECT losses.*, medians.*, models.*, (SELECT max(rollout) FROM python.steps) AS rollouts
FROM (SELECT count(*) AS losses, min(step) AS first, median(lr) AS lr, min(loss) AS lowest FROM recorded) AS losses,
    (SELECT min(loss) AS best, max(loss) FILTER (part = 1) AS early, max(loss) FILTER (part = 5) AS late FROM parts)
        AS medians,
    (SELECT count(DISTINCT module) FILTER (stage = 'forward') AS modules,
        count(DISTINCT module) FILTER (stage = 'step') AS optimizers, mode(module) FILTER (stage = 'step') AS optimizer
        FROM python.torch_trace WHERE stage IN ('forward', 'step')) AS models
"""
_ADAM = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "FusedAdam", "Adam8bit", "AdamW8bit")
_USUAL = {"SGD": "0.001 to 1"} | dict.fromkeys(_ADAM, "1e-5 to 0.01")


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    optimizer = str(row["optimizer"]).rpartition(".")[2]
    if row["losses"] < limits["losses"]:
        raise NoEvidence(f"{row['losses']} losses recorded, {limits['losses']:.0f} needed: ask again later")
    if optimizer not in _USUAL or row["optimizers"] > 1:
        raise NotApplicable("several optimizers, or one that scales its learning rate itself")
    if row["lowest"] < 0 or row["rollouts"]:
        raise NotApplicable("losses of both signs, or of rollouts")
    if row["late"] < limits["left"]:
        return
    limit = limits["sgd"] if optimizer == "SGD" else limits["adam"]
    was_better = row["late"] >= limits["worse"] * row["best"]
    is_absurd = optimizer != "SGD" and row["lr"] >= limits["absurd"]
    is_deep = optimizer != "SGD" and row["modules"] >= limits["modules"]
    is_flat = row["late"] >= limits["flat"] * row["early"]
    if not is_absurd and not (row["lr"] >= limit and (was_better or (is_deep and is_flat))):
        return
    then = f", and was {row['best']:.4g} before" if was_better else ", and does not fall" if is_flat else ""
    yield Finding(
        f"the learning rate is {row['lr']:.3g}, far above what {optimizer} works with: the loss is {row['late']:.4g}"
        + then,
        Certainty.LIKELY if is_absurd or was_better else Certainty.POSSIBLE,
        share=1.0,
        since_step=row["first"],
        where=optimizer,
        evidence=(
            f"usual for {optimizer}: {_USUAL[optimizer]}",
            f"medians of fifths of {row['losses']} losses: the lowest {row['best']:.6g}, the last {row['late']:.6g}",
        ),
        advice=(
            "lower it by 10 to 1,000 times, and begin with fresh weights: units that have died or saturated stay so",
            "look for a factor that it was multiplied by: a schedule, the world size, a missing decimal point",
            "let it grow over the first few hundred steps (warm-up)",
        ),
        try_first='probe PID query "SELECT step, loss, lr, grad_norm FROM python.steps ORDER BY step DESC LIMIT 200"',
    )


RULE = Rule(
    "learning-rate-too-high",
    "numbers",
    "Is the learning rate far above what the optimizer works with?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("absurd", 0.5, "learning rate of Adam and its kin that is named in any case"),
        Threshold("adam", 0.05, "learning rate of Adam and its kin that is named if the loss was better before"),
        Threshold("sgd", 5.0, "learning rate of SGD that is named if the loss was better before"),
        Threshold("worse", 1.5, "last losses over the best ones from which the loss was better before"),
        Threshold("flat", 0.97, "last losses over the first ones from which the loss does not fall"),
        Threshold("modules", 8, "modules of a network in which a flat loss is enough"),
        Threshold("left", 1e-3, "loss below which hardly any is left"),
        Threshold("losses", 60, "losses needed to judge"),
    ),
    explains=(
        "gradients",
        "layer-gradients",
        "loss-flat",
        "loss-at-chance",
        "loss-rises",
        "loss-spikes",
        "loss-volatile",
        "parameters-not-updated",
    ),
)
