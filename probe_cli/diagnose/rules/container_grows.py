"""A container of the job grows with each step, and memory with it.

A list, dict or set that the job's frames and globals lead to was longer at the second look than at the first, and the
resident memory has grown for as long as it was recorded. A list of numbers for the log grows, too, but takes next to
nothing: it is not named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes

__all__ = ["RULE"]

SQL = """
WITH newest AS (FROM process.samples WHERE rss IS NOT NULL ORDER BY ts DESC LIMIT 600),
recent AS (SELECT rss, step, ntile(4) OVER (ORDER BY ts) AS part FROM newest),
parts AS (SELECT part, median(rss) AS rss, count(*) AS samples FROM recent GROUP BY part)
SELECT place, "class" AS kind, items, added, period, steps, tensors, graphs, tensor_size, size, grown.*
FROM python.containers, (SELECT max(rss) FILTER (part = 4) AS now, max(rss) FILTER (part = 3) AS third,
    max(rss) FILTER (part = 2) AS second, max(rss) FILTER (part = 1) AS first, sum(samples) AS samples FROM parts
) AS grown
WHERE graphs = 0
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows or (rows[0]["samples"] or 0) < limits["samples"]:
        raise NotApplicable("no container was found, or memory was seen for too short a time")
    first, second, third, now = (rows[0][name] or 0.0 for name in ("first", "second", "third", "now"))
    grown = now - first
    if not (first < second < third < now) or grown < max(limits["mib"], limits["share"] * first):
        return
    growing = [row for row in rows if row["added"] > 0 and (row["size"] or 0.0) >= limits["part"] * grown]
    if not growing or now - third < 0.2 * grown:
        return
    worst = max(growing, key=lambda row: row["size"])
    holds = f", with {mebibytes(worst['size'])} in them"
    yield Finding(
        f"a {worst['kind']} grows with each step, to {worst['items']:,} items{holds}",
        Certainty.LIKELY,
        share=0.4,
        where=worst["place"],
        evidence=(
            f"{worst['added']} items more in {worst['period']:g} s ({worst['steps']} steps): {worst['place']}",
            f"resident memory has grown by {mebibytes(grown)}, from {mebibytes(first)} to {mebibytes(now)}",
        ),
        advice=(
            "empty it, or bound it: collections.deque(maxlen=N), functools.lru_cache(maxsize=N)",
            "keep what is needed of an item: a number instead of a tensor or a batch",
        ),
        try_first="probe PID memory --leaks",
    )


RULE = Rule(
    "container-grows",
    "memory",
    "Does a list, dict or set of the job grow, and memory with it?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("mib", 20.0, "MiB that resident memory has grown in the last ten minutes at most"),
        Threshold("share", 0.04, "the same as a share of it"),
        Threshold("part", 0.1, "size of what it holds as a share of that growth"),
        Threshold("samples", 12, "samples, one a second, needed to judge"),
    ),
    explains=("memory-grows", "memory-limit-near", "slower-than-best"),
    is_live=True,
)
