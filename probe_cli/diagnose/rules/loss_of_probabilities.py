"""The loss takes probabilities for logits, or logits for probabilities.

`cross_entropy` applies a softmax itself, `binary_cross_entropy_with_logits` a sigmoid: a model that ends in one of them
already gets it twice. The loss falls and stays far above zero, since probabilities differ by 1 at most. The other way
round, `nll_loss` wants logarithms of probabilities: of anything else it falls without a bound, or to -1. Read from the
graph of the loss, so it is known after one step; a graph that was compiled does not tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.loss_graph import SQL, Operation, operations
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

#: What makes probabilities, by what should be given logits.
TWICE = {
    "LogSoftmax": {"Softmax": "softmax", "Sigmoid": "sigmoid"},
    "BinaryCrossEntropyWithLogits": {"Sigmoid": "sigmoid", "Softmax": "softmax"},
}
SAYS = {"LogSoftmax": "cross_entropy", "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits"}
#: What gives logits or probabilities to nll_loss, which wants their logarithms.
NO_LOGARITHMS = {"Softmax": "probabilities", "Addmm": "logits", "Mm": "logits", "Linear": "logits"}


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no backward has ended while the graph of its loss was waited for")
    for one in operations(rows):
        source = one.source
        if source is None:
            continue
        if source.name in TWICE.get(one.name, {}):
            yield _twice(one, source)
            return
        if one.name in ("NllLoss", "NllLoss2D") and source.name in NO_LOGARITHMS:
            yield _no_logarithms(source)
            return


def _twice(one: Operation, source: Operation) -> Finding:
    what, loss = TWICE[one.name][source.name], SAYS[one.name]
    evidence = [f"the graph of the loss: {one.name} of {source.name}"]
    if one.name == "LogSoftmax" and source.shape and len(source.shape) > 1:
        least = math.log(math.e + source.shape[1] - 1) - 1
        evidence.append(f"with {source.shape[1]} classes it cannot fall below {least:.3g}")
    return Finding(
        f"the loss is a {loss} of values that have been through a {what} already",
        Certainty.LIKELY,
        share=1.0,
        where=loss,
        evidence=tuple(evidence),
        advice=(
            f"give it what comes before the {what}, and keep the {what} for the predictions",
            "or take the logarithm of the probabilities, and nll_loss or binary_cross_entropy of it",
        ),
        try_first=f"torch.nn.functional.{loss}(logits, targets)",
    )


def _no_logarithms(source: Operation) -> Finding:
    what = NO_LOGARITHMS[source.name]
    return Finding(
        f"the loss is an nll_loss of {what}, not of their logarithms",
        Certainty.LIKELY,
        share=1.0,
        where="nll_loss",
        evidence=(f"the graph of the loss: NllLoss of {source.name}",),
        advice=("cross_entropy takes logits; nll_loss takes log_softmax of them",),
        try_first="torch.nn.functional.cross_entropy(logits, targets)",
    )


RULE = Rule(
    "loss-of-probabilities",
    "numbers",
    "Does the loss get logits where it wants them?",
    SQL,
    of_each_rank(judge),
    explains=("loss-flat", "loss-at-chance", "loss-without-bound", "gradients-zero", "loss-volatile"),
    is_live=True,
)
