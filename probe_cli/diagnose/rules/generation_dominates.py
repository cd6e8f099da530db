"""Rollouts take most of the time of a loop of generation and updates.

In reinforcement learning the policy writes samples, then is updated on them. Generation token by token uses a GPU
badly; an inference engine, larger batches of prompts and shorter answers are the remedies. The updates that follow one
rollout are counted with it. What no function named generate… or rollout… tells from an evaluation, such as the episodes
of a game or the forward of a teacher, is named for what it is: modules called without gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
WITH rollouts AS (SELECT rollout, count(*) AS updates, sum(duration) AS lasted, sum(generation) AS generation,
        sum(coalesce(forward, 0) + coalesce(backward, 0) + coalesce(optimizer, 0)) AS updating,
        sum(evaluation) AS scoring
    FROM (FROM python.steps WHERE rollout > 0 ORDER BY step DESC LIMIT 500) GROUP BY rollout)
SELECT count(rollout) AS rollouts, sum(lasted) AS lasted, sum(generation) AS generation, sum(updating) AS updating,
    sum(scoring) AS scoring, median(generation) AS usual, max(generation) AS longest, sum(updates) AS updates,
    any_value(others) AS others
FROM rollouts RIGHT JOIN (
    SELECT {'steps': count(*), 'lasted': sum(duration), 'without': sum(evaluation), 'times': count_if(evaluation > 0),
        'updating': sum(coalesce(forward, 0) + coalesce(backward, 0) + coalesce(optimizer, 0))} AS others
    FROM (FROM python.steps ORDER BY step DESC LIMIT 500)
) ON generation > 0
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["generation"]:
        yield from _without_gradients(row["others"], limits)
        return
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


def _without_gradients(seen: Row, limits: Limits) -> Iterable[Finding]:
    """The same of forwards that may be rollouts, or an evaluation, or a teacher's."""
    if not seen["times"]:
        raise NotApplicable("no module was called without gradients between the steps")
    share = seen["without"] / seen["lasted"]
    if seen["steps"] < limits["steps"] or seen["times"] < limits["rollouts"] or share < limits["share"]:
        return
    yield Finding(
        f"calls without gradients take {percent(share)} of the time, the updates"
        f" {percent(seen['updating'] / seen['lasted'])}",
        Certainty.LIKELY,
        cost_s=seen["without"] / seen["steps"],
        share=share,
        where="evaluation",
        evidence=(f"{seen['times']} of {seen['steps']} steps, {seconds(seen['without'] / seen['times'])} in each",),
        advice=(
            "of rollouts: run many environments at a time, and call the policy on all of them at once",
            "of an evaluation: evaluate less often, or on fewer batches",
            "of a teacher: keep its outputs, if the inputs come again",
        ),
        try_first="probe PID profile --cpu 5s",
    )


RULE = Rule(
    "generation-dominates",
    "generation",
    "Does generation take most of the time?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.75, "share of the time spent generating"),
        Threshold("rollouts", 3, "rollouts needed to judge"),
        Threshold("steps", 50, "steps needed to judge calls without gradients that no name tells from an evaluation"),
    ),
    explains=("pauses", "slower-than-best"),
)
