"""Rollouts take most of the time of a loop of generation and updates.

In reinforcement learning the policy writes samples, then is updated on them. Generation token by token uses a GPU
badly; an inference engine, larger batches of prompts and shorter answers are the remedies. The updates that follow one
rollout are counted with it. Rollouts by functions of other names than generate… or rollout… are another rule's:
`evaluation-dominates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
SELECT count(rollout) AS rollouts, sum(lasted) AS lasted, sum(generation) AS generation, sum(updating) AS updating,
    sum(scoring) AS scoring, median(generation) AS usual, max(generation) AS longest, sum(updates) AS updates
FROM (
    SELECT rollout, count(*) AS updates, sum(duration) AS lasted, sum(generation) AS generation,
        sum(coalesce(forward, 0) + coalesce(backward, 0) + coalesce(optimizer, 0)) AS updating,
        sum(evaluation) AS scoring
    FROM (FROM python.steps WHERE rollout > 0 ORDER BY step DESC LIMIT 500) GROUP BY rollout)
WHERE generation > 0
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["generation"]:
        raise NotApplicable("nothing was generated between the steps")
    share = row["generation"] / row["lasted"] if row["lasted"] else 0.0
    if row["rollouts"] < limits["rollouts"] or share < limits["share"]:
        return
    num = row["rollouts"]
    yield Finding(
        f"generation takes {percent(share)} of the time, the updates {percent(row['updating'] / row['lasted'])}",
        Certainty.LIKELY,
        cost_s=row["generation"] / row["updates"],
        share=share,
        evidence=(
            f"{num} rollouts of {seconds(row['usual'])} each, at most {seconds(row['longest'])}; updates"
            f" {seconds(row['updating'] / num)} a rollout, other forwards without gradients"
            f" {seconds((row['scoring'] or 0.0) / num)}",
        ),
        advice=(
            "generate with an engine that batches (vLLM, SGLang), or at least with a KV cache and larger batches",
            "shorten what is generated: max_new_tokens, fewer samples a prompt, a stop at the end of the answer",
            "generate the next rollout while the last one is trained on",
            *(("rollouts differ much in length: sort prompts by length, or cap it",)
              if row["longest"] > 3 * row["usual"] else ()),
        ),
        try_first="probe PID profile --cpu 5s",
    )  # fmt: skip


RULE = Rule(
    "generation-dominates",
    "generation",
    "Does generation take most of the time?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.75, "share of the time spent generating"),
        Threshold("rollouts", 3, "rollouts needed to judge"),
    ),
    explains=("pauses", "slower-than-best"),
)
