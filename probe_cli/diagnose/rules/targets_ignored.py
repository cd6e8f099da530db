"""All targets of a batch are ignored.

A label of -100 takes no part in torch's cross entropy. A batch of nothing else has no loss: a mean over nothing, NaN,
or a step that teaches nothing. So it goes where the prompt is masked and no answer is left: the template of the answer
is not found in the text, or the answer lies behind the cut. Seen from the arguments of a few calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT any_value(module) AS module, any_value(name) AS name, count(*) AS calls,
    count(*) FILTER (ignored = 1) AS empty, avg(ignored) AS ignored
FROM torch.arguments
WHERE module IS NOT NULL AND name IN ('labels', 'label', 'target', 'targets') AND ignored IS NOT NULL
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    row = rows[0] if rows else None
    if row is None or not row["calls"]:
        raise NotApplicable("no model or loss module was called with integers as labels that could be read")
    if row["calls"] < limits["calls"]:
        raise NoEvidence(f"fewer than {limits['calls']:.0f} calls with labels in 1.5 s: ask again")
    if row["empty"] < limits["empty"] * row["calls"]:
        return
    yield Finding(
        f"in {percent(row['empty'] / row['calls'])} of the calls of {row['module']} all targets ({row['name']})"
        " are -100, which the loss ignores",
        Certainty.LIKELY,
        share=row["empty"] / row["calls"],
        where=f"{row['name']} of {row['module']}",
        evidence=(f"{row['empty']} of {row['calls']} calls; {percent(row['ignored'])} of all that were read",),
        advice=(
            "look at what masks the prompt: the template that marks the answer has to be tokenized as in the text",
            "see that the answer is not cut off: the longest sample against the maximal length",
        ),
        try_first="print(tokenizer.decode(ids), labels)  # of one sample, before the loop",
    )


RULE = Rule(
    "targets-ignored",
    "numbers",
    "Is any target left in the batches?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("calls", 4, "calls needed to judge"),
        Threshold("empty", 0.5, "part of the calls in which all targets that were read are ignored"),
    ),
    explains=("loss-not-finite", "loss-flat", "gradients-zero", "loss-volatile", "gradients-not-finite"),
    is_live=True,
)
