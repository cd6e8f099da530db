"""The loss takes probabilities for logits, logits for probabilities, or a softmax over the samples.

`cross_entropy` applies a softmax itself, `binary_cross_entropy_with_logits` a sigmoid: a model that ends in one of them
already gets it twice. The loss falls and stays far above zero, since probabilities differ by 1 at most. The other way
round, `nll_loss` and `kl_div` want logarithms of probabilities: of anything else the first falls without a bound, or
to -1, and the second pushes all probability to one class. A softmax over dimension 0, as of `softmax(x)` without a
dimension for three of them, adds up to 1 over the samples of the batch, and not over the classes. Read from the graph
of the loss, so it is known after one step; a graph that was compiled does not tell.
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
            yield _no_logarithms("nll_loss", source)
            return
        of_student = _student(one)
        if of_student is not None and of_student.name in ("Softmax", "Sigmoid"):
            yield _no_logarithms("kl_div", of_student)
            return
        if one.name == "NllLoss" and (softmax := _over_samples(one)):
            yield _of_samples(softmax)
            return


def _student(one: Operation) -> Operation | None:
    """Return what makes the first argument of a kl_div: p log p - p * q, of which the target, p, is a constant."""
    if one.name != "Sub" or one.num_constants != 1 or len(one.made_from) != 1:
        return None
    (product,) = one.made_from
    return product.source if product.operand == 1 and product.name == "Mul" and product.num_constants == 1 else None


def _over_samples(loss: Operation) -> Operation | None:
    """Return the softmax that is given to nll_loss, if it adds up to 1 over the first of several dimensions."""
    found = loss.made_from[0]
    if found.name == "Log" and found.made_from:
        found = found.made_from[0]
    is_of_samples = found.name in ("LogSoftmax", "Softmax") and found.dim == 0 and len(found.shape or ()) > 1
    return found if is_of_samples else None


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


def _no_logarithms(loss: str, source: Operation) -> Finding:
    what = NO_LOGARITHMS.get(source.name, "probabilities")
    is_kl_div = loss == "kl_div"
    return Finding(
        f"the loss is {'a' if is_kl_div else 'an'} {loss} of {what}, not of their logarithms",
        Certainty.LIKELY,
        share=1.0,
        where=loss,
        evidence=(f"the graph of the loss: {loss} of {source.name}",),
        advice=(
            "kl_div takes the logarithms of its first argument, and probabilities as its target"
            if is_kl_div
            else "cross_entropy takes logits; nll_loss takes log_softmax of them",
        ),
        try_first="torch.nn.functional.kl_div(logits.log_softmax(-1), target, reduction='batchmean')"
        if is_kl_div
        else "torch.nn.functional.cross_entropy(logits, targets)",
    )


def _of_samples(softmax: Operation) -> Finding:
    shape = softmax.shape or ()
    return Finding(
        f"the loss is of a softmax over the {shape[0]:,} samples of the batch, not over the {shape[1]:,} classes",
        Certainty.LIKELY,
        share=1.0,
        where="nll_loss",
        evidence=(f"the graph of the loss: nll_loss of {softmax.name} over dimension 0 of {shape}",),
        advice=("name the dimension of the classes, mostly the last or 1: log_softmax(logits, dim=1)",),
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
