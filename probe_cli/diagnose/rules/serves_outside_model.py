"""A server spends its time beside the model.

Of a request, decoding, tokens, boxes that are compared one by one, or an answer that is put together may take longer
than the model. The stacks of the thread that calls the model, read from outside, tell the lines: those count in which
it works and no module of torch is called. A loop of small operations on tensors counts, too. A thread that waits for
requests does not. A job that trains has other rules, also if some of its ranks only act for those that do, or if its
optimizer steps without a backward, as in evolution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import STEPS, Stack, is_waiting, look_for

__all__ = ["RULE"]


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if any(row["trained"] or row["optimizer"] for one in asked for row in one.rows):
        raise NotApplicable("the job trains")
    return of_each_rank(_judge_one)(asked, limits)


def _judge_one(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["steps"] < limits["steps"]:
        raise NoEvidence(f"{row['steps']} steps recorded, {limits['steps']:.0f} needed: ask again later")
    if 1 - row["forward"] / row["lasted"] >= limits["share"]:
        yield Finding("work beside the model", Certainty.SUSPECTED, cost_s=row["lasted"] / row["steps"])


def _is_beside_model(stack: Stack) -> bool:
    """Return whether the thread works outside of all modules."""
    works = bool(stack.holds_gil) or stack.state == "running"
    return works and not is_waiting(stack.frames) and not any("/torch/nn/" in one.file for one in stack.frames)


RULE = Rule(
    "serves-outside-model",
    "generation",
    "Does a server work beside the model for most of the time?",
    STEPS,
    judge,
    (
        Threshold("share", 0.5, "share of the time of the thread that calls the model"),
        Threshold("steps", 50, "calls of the model needed to judge"),
    ),
    look=look_for(
        _is_beside_model,
        "works outside of the model",
        (
            "do it for a whole batch at a time: one operation on all boxes or tokens, not one for each",
            "give it to other threads or processes, so that the model can take the next batch meanwhile",
            "name the parts of a request, to see how long each takes: with probe_agent.span('postprocess')",
        ),
        "probe PID profile --cpu 5s",
        who="the server",
    ),
    explains=("requests-slow", "python-bound", "slower-than-best"),
    on_host=True,
)
