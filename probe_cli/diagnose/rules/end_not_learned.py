"""A language model does not learn where a text ends.

Where the token that fills up short texts is the one that ends them (`pad_token = eos_token`), a collator that ignores
all of the first in the labels (-100) ignores the end of each text, too. The loss falls as it should, and what the model
writes goes on to the limit. Seen from the arguments of a few calls: the last token that the mask keeps is ignored, in
each text, and hardly any other one is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT any_value(module) AS module, count(*) AS calls, avg(end_ignored) AS ends
FROM torch.arguments WHERE module IS NOT NULL AND name = 'labels' AND end_ignored IS NOT NULL
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    row = rows[0] if rows else None
    if row is None or not row["calls"]:
        raise NotApplicable("no model was called with labels and an attention_mask that could be read")
    if row["calls"] < limits["calls"]:
        raise NoEvidence(f"fewer than {limits['calls']:.0f} calls with labels in 1.5 s: ask again")
    if row["ends"] < limits["ends"]:
        return
    yield Finding(
        f"the end of the text is ignored in the labels of {row['module']}: it does not learn to stop",
        Certainty.LIKELY,
        share=1.0,
        where=f"labels of {row['module']}",
        evidence=(
            f"in {percent(row['ends'])} of the texts the label of the last token is -100, and hardly any before it"
            f" ({row['calls']} calls)",
        ),
        advice=(
            "give the padding a token of its own: tokenizer.add_special_tokens({'pad_token': '<pad>'}), and resize the"
            " embedding",
            "or ignore the labels by attention_mask, and not by the token: labels[attention_mask == 0] = -100",
        ),
        try_first="labels = input_ids.masked_fill(attention_mask == 0, -100)",
    )


RULE = Rule(
    "end-not-learned",
    "numbers",
    "Does a language model learn where a text ends?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("calls", 4, "calls needed to judge"),
        Threshold("ends", 0.9, "part of the texts whose end is ignored"),
    ),
    is_live=True,
)
