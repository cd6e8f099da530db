"""The labels of a language model are shifted before it shifts them itself.

The causal language models of Hugging Face compare the output at each position with the label at the next one. Given
`labels` that are the next tokens already, as a model of one's own wants them, they learn to tell the token after the
next: the loss falls, and what they generate leaves out every other word. Seen from the arguments of a few calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT any_value(module) AS module, count(*) AS calls, avg(next_of_first) AS next, avg(same_as_first) AS same
FROM torch.arguments
WHERE library = 'transformers' AND name = 'labels' AND regexp_matches(module, '(ForCausalLM|LMHeadModel)$')
    AND next_of_first IS NOT NULL
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    row = rows[0] if rows else None
    if row is None or not row["calls"]:
        raise NotApplicable("no causal language model of transformers was called with labels that could be read")
    if row["next"] < limits["next"] or row["same"] > limits["same"]:
        return
    yield Finding(
        f"the labels of {row['module']} are the next tokens already, and it shifts them by one more",
        Certainty.LIKELY,
        share=1.0,
        where=f"labels of {row['module']}",
        evidence=(
            f"{percent(row['next'])} of the labels are the input of the next position, {percent(row['same'])} that of"
            f" their own, in {row['calls']} calls",
        ),
        advice=(
            "give it the input_ids as labels, -100 where no loss is wanted: it compares each with the output before",
            "if they are to be shifted by the job, take the loss of outputs.logits, and give the model no labels",
        ),
        try_first="model(input_ids=input_ids, labels=input_ids)  # not input_ids[:, 1:]",
    )


RULE = Rule(
    "labels-shifted-twice",
    "numbers",
    "Are the labels of a language model shifted once?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("next", 0.95, "part of the labels that are the next position's input"),
        Threshold("same", 0.5, "part that is that of their own position, above which the text repeats itself"),
    ),
    explains=("loss-at-chance", "loss-flat"),
    is_live=True,
)
