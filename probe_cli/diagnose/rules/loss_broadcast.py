"""The loss compares every output with every target.

Outputs of shape (N, 1) less targets of shape (N) are N x N differences: torch stretches both. The model learns the mean
of the targets, and the loss stays at their variance. Read from the graph of the loss: outputs of N values become N x N
at the operation that compares them with something constant. Where both sides are computed, as in a distance of all
pairs, that is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.loss_graph import SQL, Operation, operations
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

#: Losses of torch that stretch their operands before they compare them, and operations that do it as they compare.
LOSSES = {"MseLoss": "mse_loss", "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss"}
COMPARES = ("Sub", "Rsub")


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no backward has ended while the graph of its loss was waited for")
    for one in operations(rows):
        if one.num_operands != 2 or one.num_constants != 1 or not one.made_from:
            continue
        stretched = one.made_from[0]
        compared = stretched.shape if one.name in LOSSES else one.shape if one.name in COMPARES else None
        outputs = stretched.made_from[0] if stretched.name == "Expand" and stretched.made_from else stretched
        if compared is not None and _is_stretched(outputs, compared):
            yield _finding(one, compared, outputs)
            return


def _is_stretched(outputs: Operation, compared: tuple[int, ...]) -> bool:
    """Return whether N outputs, one a row, have become N x N; a dimension that was put in by hand is meant, and so
    is a parameter for each row of a table."""
    is_meant = outputs.name in ("Unsqueeze", "AccumulateGrad")
    if len(compared) != 2 or compared[0] != compared[1] or compared[0] < 2 or is_meant:
        return False
    return outputs.shape in ((compared[0], 1), (compared[0],))


def _finding(one: Operation, compared: tuple[int, ...], outputs: Operation) -> Finding:
    loss = LOSSES.get(one.name)
    warns = "torch warns of it once, in the job's own output: Using a target size that is different to the input size"
    shape = " x ".join(map(str, outputs.shape or ()))
    return Finding(
        f"the loss compares each output with the targets of all: {shape} outputs become {compared[0]} x {compared[1]}",
        Certainty.LIKELY,
        share=1.0,
        where=loss or "difference",
        evidence=(
            f"the graph of the loss: {one.name} of {compared[0]} x {compared[1]} values, from {outputs.name} with"
            f" {shape}",
        ),
        advice=(
            "give outputs and targets the same shape: model(inputs).squeeze(-1), or targets.unsqueeze(-1)",
            *([warns] if loss else []),
        ),
        try_first="loss = torch.nn.functional.mse_loss(outputs.squeeze(-1), targets)",
    )


RULE = Rule(
    "loss-broadcast",
    "numbers",
    "Is each output compared with its own target?",
    SQL,
    of_each_rank(judge),
    explains=("loss-flat", "loss-at-chance", "loss-volatile"),
    is_live=True,
)
