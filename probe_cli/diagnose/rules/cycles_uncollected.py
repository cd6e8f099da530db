"""Python's collector does not run, and memory grows.

Objects that refer to each other, as the nodes of a tree and their parent, are freed by Python's collector alone, and
with them the tensors that they hold. Jobs switch it off (`gc.disable()`) so that all steps take the same time; then
somebody has to call `gc.collect()` now and then. Named where the objects that wait for the collector become more and
more, while the memory of the process grows with significance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.cluster.memory.look import OWN
from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.growth import SERIES, growing, is_seen
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes

__all__ = ["RULE"]

SQL = f"""
WITH recent AS (SELECT ts, step, uncollected, lag(uncollected) OVER (ORDER BY ts) AS before
    FROM (FROM process.samples ORDER BY ts DESC LIMIT 60))
SELECT arg_min(uncollected, ts) AS first, arg_max(uncollected, ts) AS last,
    count(*) FILTER (uncollected < before / 2) AS runs,
    max(step) - min(step) AS steps, epoch(max(ts) - min(ts)) AS seconds FROM recent
UNION ALL BY NAME SELECT list(s) AS series FROM ({SERIES}) AS s
ORDER BY runs NULLS LAST
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    series = [one for row in rows for one in row["series"] or ()]
    seen = next((row for row in rows if row["last"] is not None), None)
    if seen is None or not is_seen(series):
        raise NotApplicable("memory was seen for too short a time")
    if seen["runs"] or seen["last"] < limits["objects"] or seen["last"] <= seen["first"]:
        return
    grown = next((found for found in growing(series, limits["mib"], is_weighed=False) if found.of == OWN), None)
    if grown is None or grown.mib < limits["share"] * grown.first:
        return
    lasts = any(found.of == OWN for found in growing(series, limits["mib"]))
    yield Finding(
        f"Python's collector does not run: {seen['last']:,} objects wait for it, and memory grows",
        Certainty.LIKELY if lasts else Certainty.POSSIBLE,
        share=0.5,
        where="gc.disable(), or a threshold of gc.set_threshold",
        evidence=(
            f"{seen['last'] - seen['first']:,} objects more in {seen['seconds']:.0f} s ({seen['steps']} steps)",
            f"memory has grown from {mebibytes(grown.first)} to {mebibytes(grown.last)}",
        ),
        advice=(
            "call gc.collect() every hundred steps, or let the collector run: gc.enable()",
            "cut the cycles: weakref.ref(parent), or `node.state = None` once a step is over",
        ),
        try_first="if step % 100 == 0: gc.collect()",
    )


RULE = Rule(
    "cycles-uncollected",
    "memory",
    "Does Python's collector run while memory grows?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("objects", 20_000, "objects that wait for the collector: it runs from about 2,000 on"),
        Threshold("mib", 20.0, "MiB of growth in the time seen"),
        Threshold("share", 0.04, "growth as a share of the memory at first"),
    ),
    explains=("memory-grows", "memory-limit-near"),
)
