"""Memory grows, and goes on growing.

The changes from window to window of the resident memory, of that of the loader's workers, and of each device are tested
for a drift; a cache that fills, memory that is given back, and what grows before the sixth recorded step, while the job
starts, are none. What grows is another rule's finding where it can be seen: a list of losses with their graphs, a
container that is never emptied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.cluster.memory.trend import MIN_SAMPLES, Sample, State, trend
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes

__all__ = ["RULE"]

WORKERS = "worker processes"
SQL = f"""
WITH seen AS (
    SELECT 'resident memory' AS of, epoch(ts) AS t, step, rss AS mib FROM python.steps
    UNION ALL SELECT 'resident memory', epoch(ts), step, rss FROM process.samples
    UNION ALL SELECT '{WORKERS}', epoch(ts), step, children_rss FROM process.samples WHERE num_children > 0
    UNION ALL SELECT device, epoch(ts), step, allocated FROM torch.memory
), series AS (FROM seen WHERE step >= (SELECT coalesce(min(step) + 5, -1) FROM python.steps)
), extent AS (SELECT of, min(t) AS began, max(t) AS ended FROM series WHERE mib IS NOT NULL GROUP BY of),
parts AS (SELECT of, max(t) AS t, max(step) AS step, min(mib) AS mib FROM series JOIN extent USING (of)
    WHERE mib IS NOT NULL GROUP BY of, least(79, floor((t - began) / greatest(ended - began, 1e-6) * 80)))
SELECT of, list({{'t': t, 'step': step, 'mib': mib}} ORDER BY t) AS samples,
    (SELECT arg_max(coalesce(num_children, 0), ts) FROM process.samples) AS workers
FROM parts GROUP BY of
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not any(len(row["samples"]) >= MIN_SAMPLES for row in rows):
        raise NoEvidence("memory was seen for too short a time: ask again later")
    for row in rows:
        samples = [Sample(one["t"], one["step"] if one["step"] >= 0 else None, one["mib"]) for one in row["samples"]]
        # What ends no higher than it was in its middle needs no test.
        if samples[-1].mib - samples[len(samples) // 2].mib < limits["mib"] / 2:
            continue
        grows = trend(samples)
        grown = grows.per_second * grows.span_s
        if grows.state is State.GROWS and grown >= max(limits["mib"], limits["share"] * samples[0].mib):
            yield _finding(row, samples, grows.per_second, grows.per_step, grows.span_s)


def _finding(row: Row, samples: Sequence[Sample], per_second: float, per_step: float | None, span_s: float) -> Finding:
    is_of_workers = row["of"] == WORKERS
    rate = f"{mebibytes(per_step)} a step" if per_step else f"{mebibytes(per_second)} a second"
    advice = (
        "look at what a dataset keeps: lists and dicts of Python objects are copied page by page into each worker"
        " as their reference counts change; keep such data in arrays or tensors",
        "persistent_workers=False starts them anew at each epoch",
        "fewer workers, or a smaller prefetch_factor",
    )
    if not is_of_workers:
        advice = (
            "find the line that keeps it: `probe PID memory --leaks`",
            "keep numbers, not tensors: loss.item() or loss.detach() for the log, not loss",
            "look for lists, dicts and caches that are never emptied",
        )
    return Finding(
        f"{'the memory of the ' if is_of_workers else ''}{row['of']} grows by {rate}",
        Certainty.CERTAIN,
        share=0.3,
        where=row["of"],
        evidence=(
            f"{mebibytes(samples[0].mib)} at first, {mebibytes(samples[-1].mib)} now;"
            f" {mebibytes(3600 * per_second)} an hour at this rate, seen for {span_s:.0f} s",
        ),
        advice=advice,
        try_first="probe PID memory --leaks" if not is_of_workers else 'probe PID query "FROM python.workers"',
    )


RULE = Rule(
    "memory-grows",
    "memory",
    "Does memory grow on and on?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("mib", 8.0, "MiB of growth in the time seen"),
        Threshold("share", 0.02, "growth as a share of the memory at first"),
    ),
)
