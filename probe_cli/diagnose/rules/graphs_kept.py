"""Tensors are kept together with their autograd graphs.

A loss that is appended to a list, or summed up over the epoch, keeps the graph behind it, and with it the activations
of its step. The list itself looks small. A container that the job's frames lead to holds such tensors, has got more of
them while a step ended, and has not been emptied: the log probabilities of one episode are kept with their graphs, too,
until its update. Of a sum or a moving average, the newest part of its graph is read when a step has ended, twice: a sum
of many parts that one step makes does not go back to an earlier step. Exceptions that are kept hold the frames that
they came through, and so the tensors in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.growth import OF_EXCEPTIONS
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT place, "class" AS kind, items, added, period, tensors, graphs, steps,
    (SELECT max(rss) - min(rss) FROM python.steps) AS grown
FROM python.containers WHERE graphs > 0
UNION ALL BY NAME SELECT NULL AS place, 0 AS graphs
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    kept = [row for row in rows if row["graphs"] >= limits["graphs"] and row["added"] > 0 < row["steps"]]
    if not rows:
        raise NotApplicable("no container was found")
    if not kept:
        return
    worst = max(kept, key=lambda row: row["graphs"])
    is_sum = worst["kind"] == "Tensor"
    are_exceptions = worst["kind"].endswith("exceptions")
    kind = "sum" if is_sum else worst["kind"]
    yield Finding(
        f"{worst['graphs']:,} tensors are kept with their autograd graphs in a {kind}",
        Certainty.CERTAIN,
        share=0.5,
        where=worst["place"],
        evidence=(
            f"{kind} of {worst['items']:,} items, {worst['added']} more in {worst['period']:g} s"
            f" ({worst['steps']} steps): {worst['place']}",
            f"resident memory has grown by {worst['grown'] or 0:,.0f} MiB in the recorded steps",
        ),
        advice=OF_EXCEPTIONS
        if are_exceptions
        else (
            "keep the number: loss.item(), or loss.detach() to read it later",
            "empty the list where it is read, at the end of each epoch",
        ),
        try_first="total += loss.item()"
        if is_sum
        else "errors.append(str(error))"
        if are_exceptions
        else "history.append(loss.detach())",
    )


RULE = Rule(
    "graphs-kept",
    "memory",
    "Are tensors kept with their autograd graphs?",
    SQL,
    of_each_rank(judge),
    (Threshold("graphs", 20, "tensors with a graph in one container"),),
    explains=(
        "memory-grows",
        "cycles-uncollected",
        "container-grows",
        "slower-than-best",
        "device-out-of-memory",
        "memory-limit-near",
    ),
    is_live=True,
)
