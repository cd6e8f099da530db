"""A language model sees the tokens that it is to predict: its attention has no causal mask.

Then it copies the next token instead of predicting it. The loss falls further than it can, and what the model writes is
noise, since there is no next token to copy. Seen from the graph of a loss: the targets of cross_entropy are the tokens
after those that an embedding was given, and in each attention over them the first position sees the last. A mask of the
padding alone hides no later token. On a CPU; what was compiled is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT max(next_tokens) AS next, any_value(tokens) AS tokens, any_value(operation) AS operation,
    count(*) FILTER (WHERE sees_later) AS open, count(*) FILTER (WHERE NOT sees_later) AS hidden,
    count(*) FILTER (WHERE sees_later IS NULL) AS unknown
FROM torch.attentions
WHERE queries = keys AND next_tokens IS NOT NULL AND queries = TRY_CAST(split_part(tokens, 'x', 2) AS BIGINT)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    row = rows[0] if rows else None
    if row is None or row["next"] is None:
        raise NotApplicable("no loss of tokens has an attention over them that could be read")
    if row["next"] < limits["next"] or row["hidden"]:
        return
    if row["unknown"]:
        raise NotApplicable("the masks of some attentions could not be read")
    yield Finding(
        "the model sees the tokens that it is to predict: its attention has no causal mask",
        Certainty.LIKELY,
        share=1.0,
        where=row["operation"],
        evidence=(
            f"{percent(row['next'])} of the targets are the token after that of their position, of tokens"
            f" {row['tokens']}",
            f"in all of {row['open']} attentions over them the first position sees the last",
        ),
        advice=(
            "give torch's attention is_causal=True, or a layer of torch.nn a mask and is_causal=True",
            "in attention of one's own, fill the scores of later positions with -inf before the softmax; a mask of the"
            " padding alone hides none",
            "start the training anew: what the model has learned is to copy",
        ),
        try_first="scaled_dot_product_attention(query, key, value, is_causal=True)",
    )


RULE = Rule(
    "attention-not-causal",
    "numbers",
    "Does a language model see the tokens that it is to predict?",
    SQL,
    of_each_rank(judge),
    (Threshold("next", 0.95, "part of the targets that are the token after that of their position"),),
    explains=("loss-flat", "gradients-zero", "layer-gradients"),
    is_live=True,
)
