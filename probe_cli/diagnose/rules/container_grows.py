"""A container of the job grows with each step, and memory with it.

A list, dict or set that the job's frames and globals lead to, or an lru_cache without a bound, got longer while it was
looked at, never shorter, and the memory of the process grows with significance, or what is used of /dev/shm: an item
that is a view keeps all of the tensor it was cut from, such as a batch of the loader. It is called possible until
memory has grown for as long as `memory-grows` waits for: it may be a cache that will be full. A list of numbers for the
log grows, too, but takes next to nothing: it is not named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.cluster.memory.look import OWN, SHM
from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.growth import OF_EXCEPTIONS, SERIES, growing, is_seen
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes

__all__ = ["RULE"]

SQL = f"""
SELECT place, "class" AS kind, items, added, period, steps, size FROM python.containers WHERE graphs = 0
UNION ALL BY NAME SELECT list(s) AS series FROM ({SERIES}) AS s
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    containers = [row for row in rows if row["place"] is not None]
    series = [one for row in rows for one in row["series"] or ()]
    if not containers or not is_seen(series):
        raise NotApplicable("no container was found, or memory was seen for too short a time")
    memories = [found for found in growing(series, limits["mib"], is_weighed=False) if found.of in (OWN, SHM)]
    grown = max(memories, key=lambda found: found.mib, default=None)
    if grown is None or grown.mib < limits["share"] * grown.first:
        return
    growing_too = [row for row in containers if row["added"] > 0 and (row["size"] or 0.0) >= limits["part"] * grown.mib]
    if not growing_too:
        return
    lasts = any(found.of == grown.of for found in growing(series, limits["mib"]))
    worst = max(growing_too, key=lambda row: row["size"])
    memory = "memory" if grown.of == OWN else grown.of
    kind = "an lru_cache" if worst["kind"] == "lru_cache" else f"a {worst['kind']}"
    yield Finding(
        f"{kind} grows with each step, to {worst['items']:,} items, with {mebibytes(worst['size'])} in them",
        Certainty.LIKELY if lasts else Certainty.POSSIBLE,
        share=0.6,
        where=worst["place"],
        evidence=(
            f"{worst['added']} items more in {worst['period']:g} s ({worst['steps']} steps): {worst['place']}",
            f"{memory} has grown from {mebibytes(grown.first)} to {mebibytes(grown.last)}",
        ),
        advice=OF_EXCEPTIONS
        if worst["kind"].endswith("exceptions")
        else (
            "empty it, or bound it: collections.deque(maxlen=N), functools.lru_cache(maxsize=N)",
            "keep what is needed of an item: a number instead of a tensor or a batch; x[i] keeps all of x, x[i].clone()"
            " does not",
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
        Threshold("mib", 20.0, "MiB of growth in the time seen"),
        Threshold("share", 0.04, "growth as a share of the memory at first"),
        Threshold("part", 0.1, "size of what it holds as a share of that growth"),
    ),
    explains=("memory-grows", "cycles-uncollected", "memory-limit-near", "slower-than-best"),
    is_live=True,
)
