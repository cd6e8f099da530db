"""Some requests take many times as long as the usual one, or wait in a queue.

A server that names its parts with `probe_agent.span` is judged by them: the median and the 99th percentile of each
part, and the share of parts whose name says that they wait. The part whose tail is the longest is named. Without spans
the calls of the model are judged where they are the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
WITH recent AS (SELECT path, duration, self_duration, depth FROM python.spans ORDER BY ts DESC LIMIT 20000),
parts AS (SELECT path, min(depth) AS depth, count(*) AS times, median(duration) AS usual,
        quantile_cont(duration, 0.99) AS slow, sum(duration) AS lasted, sum(self_duration) AS own FROM recent
    GROUP BY path)
SELECT parts.*, (SELECT count(*) FROM python.steps WHERE backward > 0 OR optimizer > 0) AS trained,
    (SELECT sum(own) FROM parts) AS together
FROM parts ORDER BY lasted DESC LIMIT 50
"""
_WAITS = ("queue", "wait", "pending")


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows or rows[0]["trained"]:
        raise NotApplicable("no server that names its parts: with probe_agent.span(NAME)")
    parts = [row for row in rows if row["times"] >= limits["requests"]]
    if not parts:
        raise NotApplicable(f"fewer than {limits['requests']:.0f} requests so far")
    stages = tuple(
        f"{row['path']}: p50 {seconds(row['usual'])}, p99 {seconds(row['slow'])},"
        f" {percent(row['own'] / row['together'])} of the time"
        for row in sorted(parts, key=lambda row: -row["own"])[:6]
    )
    waiting = max((row for row in parts if _is_queue(row)), key=lambda row: row["own"], default=None)
    if waiting is not None and waiting["own"] >= limits["queue"] * waiting["together"]:
        yield Finding(
            f"requests wait in {waiting['path']} {percent(waiting['own'] / waiting['together'])} of their time",
            Certainty.CERTAIN,
            cost_s=waiting["own"] / waiting["times"],
            share=waiting["own"] / waiting["together"],
            where=waiting["path"],
            evidence=stages,
            advice=(
                "answer several requests in one batch of the model",
                "more workers or replicas, as long as cores or GPUs are free",
                "shorten the stage that the queue waits for: the one with the largest share beside it",
            ),
            try_first="probe PID profile --cpu 5s",
        )
        return
    slow = [row for row in parts if row["slow"] >= limits["tail"] * row["usual"] and row["slow"] >= limits["seconds"]]
    if slow:
        worst = max(slow, key=lambda row: (row["depth"], row["slow"]))
        yield Finding(
            f"one request in a hundred takes {worst['slow'] / worst['usual']:.0f} times the usual in {worst['path']}",
            Certainty.LIKELY,
            share=0.1,
            where=worst["path"],
            evidence=stages,
            advice=(
                "look at what these requests have in common: length, size of the batch, a cold cache",
                "look for pauses: garbage collection (python.gc), compilation of a new shape (torch.compile)",
            ),
            try_first='probe PID query "SELECT * FROM python.spans ORDER BY duration DESC LIMIT 20"',
        )


def _is_queue(row: Row) -> bool:
    return any(word in row["path"].rpartition("/")[2].lower() for word in _WAITS)


RULE = Rule(
    "requests-slow",
    "generation",
    "Do requests wait, or take many times the usual?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("queue", 0.3, "share of the time that requests spend in a queue"),
        Threshold("tail", 10.0, "99th percentile over the median of a part"),
        Threshold("seconds", 0.05, "seconds that the 99th percentile takes"),
        Threshold("requests", 50, "requests needed to judge"),
    ),
    explains=("pauses", "slower-than-best"),
)
