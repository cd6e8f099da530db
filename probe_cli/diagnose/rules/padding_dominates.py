"""Most of what the model computes is padding.

Sequences of unlike length are filled up to the longest of the batch, or to a fixed length, and a mask hides what was
filled up; it is computed all the same. Batches of similar lengths, or as long as their longest sequence and not as the
longest of all, save that part of forward and backward. Seen from the masks of a few calls: `attention_mask`, and
`src_key_padding_mask` of torch's own layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
WITH masks AS (
    SELECT *, CASE WHEN name = 'attention_mask' THEN 1 - mean ELSE mean END AS padding
    FROM torch.arguments
    WHERE module IS NOT NULL AND low >= 0 AND high <= 1 AND regexp_matches(shape, '^[0-9]+x[0-9]+$')
        AND name IN ('attention_mask', 'src_key_padding_mask', 'key_padding_mask')
        AND split_part(shape, 'x', 2)::BIGINT <= 512  -- whole rows were read
),
spent AS (
    SELECT median(duration) AS step, median(coalesce(forward, 0) + coalesce(backward, 0)) AS computing
    FROM python.steps
)
SELECT count(*) AS calls, avg(padding) AS padding, any_value(module) AS module, any_value(name) AS name,
    any_value(shape) AS shape, any_value(spent) AS spent
FROM masks, spent
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    row = rows[0] if rows else None
    if row is None or not row["calls"]:
        raise NotApplicable("no model was called with a mask of its padding that could be read")
    if row["calls"] < limits["calls"]:
        raise NoEvidence(f"fewer than {limits['calls']:.0f} calls with a mask in 1.5 s: ask again")
    if row["padding"] < limits["padding"] or not row["spent"] or not row["spent"]["step"]:
        return
    cost = row["padding"] * row["spent"]["computing"]
    yield Finding(
        f"{percent(row['padding'])} of the tokens that {row['module']} computes are padding",
        Certainty.LIKELY,
        cost_s=cost,
        share=min(1.0, cost / row["spent"]["step"]),
        where=f"{row['name']} of {row['module']}",
        evidence=(f"{row['name']} of shape {row['shape']}, the mean of {row['calls']} calls",),
        advice=(
            "pad to the longest sequence of the batch, not to a fixed length: padding=True, not padding='max_length'",
            "put sequences of similar length into a batch: group_by_length=True of the Trainer, a sampler by length",
            "or pack several sequences into one row",
        ),
        try_first="collate_fn=transformers.DataCollatorWithPadding(tokenizer)",
    )


RULE = Rule(
    "padding-dominates",
    "speed",
    "Is most of what the model computes padding?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("calls", 4, "calls needed to judge"),
        Threshold("padding", 0.6, "part of the tokens that is padding"),
    ),
    is_live=True,
)
