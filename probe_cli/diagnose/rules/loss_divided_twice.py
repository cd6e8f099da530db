"""The loss is divided twice by the number of accumulated batches.

Accelerate, Lightning and the Trainer of transformers divide the loss by the number of batches whose gradients add up.
A job that does so as well has gradients that are as many times too small: SGD learns as slowly, and a limit for
clipping, a weight decay and the eps of Adam mean something else. Seen from the graph of a loss that is divided by a
number and again by the same. A sum that is divided by two sizes which happen to be equal, such as height and width,
is a mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.loss_graph import SQL, Operation, operations
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no backward has begun while the graph of its loss was waited for")
    for call in sorted({row["backward_call"] for row in rows}):
        by = _twice(next(operations(row for row in rows if row["backward_call"] == call)))
        if by:
            yield Finding(
                f"the loss is divided by {by:.0f}, and again by {by:.0f}: gradients are {by:.0f} times too small",
                Certainty.LIKELY,
                where="the loss",
                evidence=(f"the graph of the loss: two divisions by {by:.0f}, one after the other",),
                advice=(
                    "if both are for accumulated batches, leave out your own: Accelerate, Lightning and transformers"
                    " divide by their number",
                ),
                try_first="accelerator.backward(loss)  # not loss / gradient_accumulation_steps",
            )
            return


def _twice(loss: Operation) -> float | None:
    """Return the whole number that a loss is divided by twice, one division right after the other."""
    inner = loss.source
    if loss.shape or loss.name != "Div" or inner is None or inner.name != "Div" or loss.divisor != inner.divisor:
        return None
    is_sum = inner.source is None or inner.source.name in ("Sum", "Div")
    by = loss.divisor
    return by if not is_sum and by is not None and by >= 2 and by == int(by) else None


RULE = Rule(
    "loss-divided-twice",
    "numbers",
    "Is the loss divided once by the number of accumulated batches?",
    SQL,
    of_each_rank(judge),
    explains=("loss-flat", "loss-at-chance"),
    is_live=True,
)
