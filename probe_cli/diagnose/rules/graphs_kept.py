"""Tensors are kept together with their autograd graphs.

A loss that is appended to a list, or summed up over the epoch, keeps the graph behind it, and with it the activations
of its step. The list itself looks small. A container that the job's frames lead to holds such tensors, has got more of
them while a step ended, and has not been emptied: the log probabilities of one episode are kept with their graphs, too,
until its update. One that gets more only now and then, such as the losses of an evaluation, is looked at several times:
it has to become longer over several steps, and never shorter.

Of a sum or a moving average, and of a buffer that is written into, such as a memory bank, the newest part of its graph
is read when a step has ended, twice: a sum of many parts that one step makes does not go back to an earlier step.
Exceptions that are kept hold the frames that they came through, and so the tensors in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.growth import OF_EXCEPTIONS
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT step, place, "class" AS kind, items, added, period, tensors, graphs, steps,
    (SELECT max(rss) - min(rss) FROM python.steps) AS grown
FROM python.containers WHERE graphs > 0
UNION ALL BY NAME SELECT NULL AS place, 0 AS graphs
"""
#: How often a container is looked at that gets no more at first, and the seconds in between.
LOOKS, PAUSE_S = 4, 1.0


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    kept = [row for row in rows if row["graphs"] >= limits["graphs"]]
    if not rows:
        raise NotApplicable("no container was found")
    growing = [row for row in kept if row["added"] > 0 < row["steps"]]
    if not growing:
        yield from (Finding("", Certainty.SUSPECTED, where=row["place"]) for row in kept if not row["added"])
        return
    yield _finding(max(growing, key=lambda row: row["graphs"]))


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """See which of the suspected containers become longer. Raises NoEvidence where none does while steps end."""
    told = [one for one in found if one.certainty is not Certainty.SUSPECTED]
    if told:
        return told
    seen: dict[tuple[int, str], list[Row]] = {(one.ranks[0], one.where): [] for one in found}
    ranks = dict.fromkeys(rank for rank, _ in seen)
    for _ in range(LOOKS):
        for rank in ranks:
            for row in await job.rows(SQL, rank):
                if (rank, row["place"]) in seen:
                    seen[rank, row["place"]].append(row)
        await asyncio.sleep(PAUSE_S)
    kept = {of: rows for of, rows in seen.items() if len(rows) == LOOKS and _only_grows(rows, limits)}
    if not kept and all(len(rows) < LOOKS or _steps(rows) < limits["steps"] for rows in seen.values()):
        raise NoEvidence("containers hold tensors with graphs, and too few steps ended while they were looked at")
    for (rank, _), rows in kept.items():
        added = {"added": rows[-1]["graphs"] - rows[0]["graphs"], "period": LOOKS * PAUSE_S, "steps": _steps(rows)}
        told.append(replace(_finding({**rows[-1], **added}), ranks=(rank,)))
    return told


def _only_grows(rows: Sequence[Row], limits: Limits) -> bool:
    """Return whether a container got more graphs, never less, over several steps."""
    graphs = [row["graphs"] for row in rows]
    return graphs == sorted(graphs) and graphs[0] < graphs[-1] and _steps(rows) >= limits["steps"]


def _steps(rows: Sequence[Row]) -> int:
    return int((rows[-1]["step"] or 0) - (rows[0]["step"] or 0)) if rows else 0


def _finding(worst: Row) -> Finding:
    is_sum = worst["kind"] == "Tensor"
    are_exceptions = worst["kind"].endswith("exceptions")
    is_buffer = is_sum and worst["place"].startswith("buffer ")
    kind = "buffer" if is_buffer else "sum" if is_sum else worst["kind"]
    return Finding(
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
        else ("write into it without a graph: under torch.no_grad(), or what was detached",)
        if is_buffer
        else (
            "keep the number: loss.item(), or loss.detach() to read it later",
            "empty the list where it is read, at the end of each epoch",
        ),
        try_first="with torch.no_grad(): self.bank[indices] = keys"
        if is_buffer
        else "total += loss.item()"
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
    (
        Threshold("graphs", 20, "tensors with a graph in one container"),
        Threshold("steps", 5, "steps over which it only becomes longer, if it does so now and then"),
    ),
    explains=(
        "memory-grows",
        "cycles-uncollected",
        "container-grows",
        "slower-than-best",
        "device-out-of-memory",
        "memory-limit-near",
    ),
    is_live=True,
    look=look,
)
