"""A term of the loss is a constant: the gradient that it is made of was taken without `create_graph=True`.

A gradient penalty (WGAN-GP, R1), or the residual of a differential equation, is a function of a gradient, and to learn
from it torch has to keep how that was computed: `torch.autograd.grad(…, create_graph=True)`. Without it the term is
added to the loss, and changes nothing. Seen from the graph of a loss that has a constant term, where
`torch.autograd.grad` was called without it before; a number that is added in Python looks the same, so the second is
needed, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.loss_graph import SQL, Operation, operations
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

#: What sums of terms are made of.
SUMS, SCALES = ("Add", "Sub"), ("Neg", "Mul", "Div", "ToCopy", "Squeeze", "View")


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no backward has begun while the graph of its loss was waited for")
    for call in sorted({row["backward_call"] for row in rows}):
        own = [row for row in rows if row["backward_call"] == call]
        num = own[0]["plain_grads"]
        if num and _has_constant_term(next(operations(own))):
            yield Finding(
                "a term of the loss has no gradient: it is made of one that was taken without create_graph=True",
                Certainty.LIKELY,
                share=1.0,
                where="torch.autograd.grad",
                evidence=(
                    "the graph of the loss: a sum, of which one term is a constant",
                    f"torch.autograd.grad was called without create_graph before it, {num} times",
                ),
                advice=("take the gradient with create_graph=True, so that backward goes through it",),
                try_first="torch.autograd.grad(outputs.sum(), inputs, create_graph=True)",
            )
            return


def _has_constant_term(loss: Operation) -> bool:
    """Return whether a constant is added to what the loss is the sum of."""
    if loss.shape:
        return False
    if loss.name in SUMS:
        return loss.num_constants > 0 or any(map(_has_constant_term, loss.made_from))
    return loss.name in SCALES and any(map(_has_constant_term, loss.made_from))


RULE = Rule(
    "penalty-without-gradient",
    "numbers",
    "Has each term of the loss a gradient?",
    SQL,
    of_each_rank(judge),
    explains=("loss-without-bound", "loss-volatile", "loss-rises"),
    is_live=True,
)
