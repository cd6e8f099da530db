"""The loss is that of guessing, and stays there.

A model that tells C classes nothing apart has a cross-entropy of ln C: 0.693 for two, 1.79 for six. Each training
begins near it. One that is still there after some hundred steps and several passes over its data, neither above nor
below, learns nothing of what its labels say: they do not belong to the inputs, as where inputs and labels are shuffled
each for itself, or the inputs say nothing of them. What the loss is made of, and of how many classes, is read from its
graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
WITH losses AS (SELECT step, loss, ntile(5) OVER (ORDER BY step) AS part FROM python.steps WHERE isfinite(loss)),
parts AS (SELECT median(loss) AS loss FROM losses GROUP BY part)
SELECT (SELECT count(*) FROM losses) AS losses, (SELECT min(step) FROM losses) AS first,
    (SELECT min(loss) FROM parts) AS lowest, (SELECT max(loss) FROM parts) AS highest,
    (SELECT max(rollout) FROM python.steps) AS rollouts,
    (SELECT list(DISTINCT {'operation': operation, 'shape': shape}) FROM torch.autograd_graph
        WHERE operation IN ('LogSoftmax', 'BinaryCrossEntropyWithLogits')) AS made_of,
    (SELECT max(whole_passes) FROM torch.dataloaders) AS passes
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    classes = {_classes(one) for one in row["made_of"] or ()}
    if len(classes) != 1 or None in classes or row["rollouts"]:
        raise NotApplicable("the loss is no cross-entropy of one number of classes")
    if row["passes"] is None:
        raise NotApplicable("no DataLoader was found: the data may be new in each step, and random")
    if row["passes"] < limits["passes"]:
        raise NotApplicable(f"{row['passes']} whole passes over the data, {limits['passes']:.0f} needed")
    if row["losses"] < limits["losses"]:
        raise NoEvidence(f"{row['losses']} losses recorded, {limits['losses']:.0f} needed: ask again later")
    num = int(classes.pop() or 0)
    chance = math.log(num)
    if row["lowest"] < (1 - limits["near"]) * chance or row["highest"] > (1 + limits["near"]) * chance:
        return
    yield Finding(
        f"the loss stays at {row['lowest']:.4g}, that of guessing among {num} classes: no label is learned",
        Certainty.POSSIBLE,
        share=1.0,
        since_step=row["first"],
        evidence=(
            f"after {row['passes']} passes over the data; ln {num} = {chance:.4g}",
            f"medians of fifths of {row['losses']} losses: {row['lowest']:.4g} to {row['highest']:.4g}",
        ),
        advice=(
            "see that labels belong to their inputs: one shuffle, one order, one index for both",
            "look at a batch: that the inputs differ from each other, and are of a usual size",
            "train on one batch: a model that cannot learn it by heart has a cut in its gradients (`probe PID grads`)",
        ),
        try_first="DataLoader(TensorDataset(inputs, labels), shuffle=True)  # one loader for both",
    )


def _classes(one: Row) -> int | None:
    if one["operation"] != "LogSoftmax":
        return 2
    sizes = str(one["shape"] or "").split("x")
    return int(sizes[1]) if len(sizes) > 1 and sizes[1].isdigit() and int(sizes[1]) > 1 else None


RULE = Rule(
    "loss-at-chance",
    "numbers",
    "Is the loss better than that of guessing?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("near", 0.015, "how far from the loss of guessing it may be, as a share of it"),
        Threshold("passes", 3, "whole passes over the data: a model that learns by heart has begun to"),
        Threshold("losses", 400, "losses needed to judge"),
    ),
    is_live=True,
)
