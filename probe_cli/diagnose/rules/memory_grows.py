"""Memory grows, and goes on growing.

Judged is the memory that the process and the loader's workers hold themselves, without files and shared memory, and
that of each device. Changes from window to window are tested for a drift; a cache that fills, memory that is given
back, and what grows while the job starts, are none; nor is the use of memory that was asked for before, such as a
replay buffer that fills, unless the memory of the host ends first. Growth is told once it was seen for a fiftieth of
the time in which it fills the memory, from 15 seconds to ten minutes, and only if that comes within two weeks; until
then it is not judged, and the answer says how long to wait. `probe … memory` judges in the same way. What grows is
another rule's finding where it can be seen: a list of losses with their graphs, a container that is never emptied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_agent.units import duration_text
from probe_cli.cluster.memory.look import CHILDREN, OWN, SHM
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.growth import SERIES, Growth, growing, is_seen, too_early
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes

__all__ = ["RULE"]

OF_WORKERS = (
    "look at what a dataset keeps: lists and dicts of Python objects are copied page by page into each worker as their"
    " reference counts change; keep such data in arrays or tensors",
    "persistent_workers=False starts them anew at each epoch",
    "fewer workers, or a smaller prefetch_factor",
)
OTHERWISE = (
    "find the line that keeps it: `probe PID memory --leaks`",
    "keep numbers, not tensors: loss.item() or loss.detach() for the log, not loss",
    "look for lists, dicts and caches that are never emptied",
)


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    rows = [row for row in rows if row["of"] != SHM]  # Probe's own rings fill there, and other jobs use it
    if not is_seen(rows):
        raise NoEvidence("memory was seen for too short a time: ask again later")
    found = [one for one in growing(rows, limits["mib"]) if one.mib >= limits["share"] * one.first]
    early = too_early(rows, limits["mib"])
    if not found and early is not None and early.mib >= limits["share"] * early.first:
        rate, span = mebibytes(early.trend.per_second), duration_text(early.trend.span_s)
        raise NoEvidence(
            f"{_what(early)} grew by {rate} a second for {span}, and so does a cache that fills: ask again in"
            f" {duration_text(early.trend.wait_s or 0.0)}"
        )
    yield from (_finding(one, limits) for one in found)


def _finding(found: Growth, limits: Limits) -> Finding:
    trend, limit = found.trend, found.limit
    is_of_workers = found.of == CHILDREN
    rate = f"{mebibytes(trend.per_step)} a step" if trend.per_step else f"{mebibytes(trend.per_second)} a second"
    full_s = None if limit is None else max(0.0, limit.left) / trend.per_second
    full = "" if limit is None or full_s is None else f"; full in {duration_text(full_s)}: {limit.name}"
    return Finding(
        f"{_what(found)} grows by {rate}",
        Certainty.CERTAIN,
        share=0.3 if full_s is None or full_s > limits["soon"] else 0.8,  # the job ends there
        where=found.of,
        evidence=(
            f"{mebibytes(found.first)} at first, {mebibytes(found.last)} now, seen for"
            f" {duration_text(trend.span_s)}{full}",
        ),
        advice=OF_WORKERS if is_of_workers else OTHERWISE,
        try_first='probe PID query "FROM python.workers"' if is_of_workers else "probe PID memory --leaks",
    )


def _what(found: Growth) -> str:
    return {OWN: "memory", CHILDREN: "the memory of the loader's workers"}.get(found.of, f"the memory of {found.of}")


RULE = Rule(
    "memory-grows",
    "memory",
    "Does memory grow on and on?",
    SERIES,
    of_each_rank(judge),
    (
        Threshold("mib", 8.0, "MiB of growth in the time seen"),
        Threshold("share", 0.02, "growth as a share of the memory at first"),
        Threshold("soon", 86_400.0, "seconds until memory is full, from which down it weighs more than slow steps"),
    ),
)
