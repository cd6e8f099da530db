"""Weight decay takes more off the weights than training puts on.

AdamW and SGD multiply each weight by 1 - learning rate * weight decay in each step: usual are 1e-6 to 1e-4 off, and at
1 % a weight is halved in 69 steps, so that the model ends where it puts out the same for all inputs. Adam and its kin
add weight decay to the gradient instead, whose length they ignore: a weight decay of 1 is then the larger part of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT optimizer, place, param_group, lr, weight_decay, parameters, sum(parameters) OVER (PARTITION BY place) AS "all",
    options LIKE '%"decoupled_weight_decay": true%' AS decoupled
FROM torch.optimizers WHERE weight_decay IS NOT NULL AND lr IS NOT NULL
"""
_DECOUPLED = ("AdamW", "SGD", "ASGD", "Lion", "Muon")
_ADDED = ("Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad")


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    known = [row for row in rows if row["optimizer"] in (*_DECOUPLED, *_ADDED)]
    if not known:
        raise NotApplicable("no optimizer whose weight decay is known to act in a usual way")
    for row in known:
        off, share = row["lr"] * row["weight_decay"], row["parameters"] / max(1, row["all"])
        is_decoupled = row["optimizer"] in _DECOUPLED or row["decoupled"]
        is_too_high = off >= limits["off"] if is_decoupled else row["weight_decay"] >= limits["added"]
        if not is_too_high or share < limits["part"]:
            continue
        halved = math.log(0.5) / math.log1p(-min(off, 0.99))
        does = f"each step takes {percent(off)} off every weight, which halves it in {halved:.0f} steps"
        yield Finding(
            f"the weight decay of {row['optimizer']} is {row['weight_decay']:.3g}: "
            + (does if is_decoupled else "it is most of the step"),
            Certainty.LIKELY,
            share=1.0,
            where=f"{row['place']}, group {row['param_group']}",
            evidence=(f"learning rate {row['lr']:.3g}; {percent(share)} of the optimizer's parameters",),
            advice=(
                "usual are 0.01 to 0.1 with AdamW and 1e-5 to 5e-4 with SGD or Adam",
                "begin with fresh weights, or go back to a checkpoint: those of now are next to zero",
            ),
            try_first='probe PID query "FROM torch.optimizers"',
        )


RULE = Rule(
    "weight-decay-too-high",
    "numbers",
    "Does weight decay leave the weights in place?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("off", 0.005, "part of a weight that one step takes off"),
        Threshold("added", 1.0, "weight decay of an optimizer that adds it to the gradient"),
        Threshold("part", 0.25, "part of the optimizer's parameters that have it"),
    ),
    explains=(
        "loss-flat",
        "loss-at-chance",
        "loss-rises",
        "gradients",
        "layer-gradients",
        "gradients-zero",
        "activations-dead",
    ),
    is_live=True,
)
