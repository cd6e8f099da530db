"""Some ranks take much more memory than others.

The peak of the device memory, or on a CPU the resident memory, is compared over the ranks. The fullest rank sets the
batch size for all of them. Stages of a pipeline, an expert that gets most of the tokens, or work that rank 0 does alone
are the usual reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Rule, Threshold
from probe_cli.text import mebibytes

__all__ = ["RULE"]

SQL = """
SELECT steps.*, (SELECT arg_max(stage, ts) FROM python.roles WHERE stage >= 0) AS stage
FROM (SELECT count(*) AS steps, max(peak_allocated) FILTER (reserved IS NOT NULL) AS on_device,
    quantile_cont(rss, 0.9) FILTER (rss > 0) AS resident
    FROM (FROM python.steps ORDER BY step DESC LIMIT 200)) AS steps
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    told = [(one, one.rows[0]) for one in asked if one.rows and one.rows[0]["steps"]]
    if len(told) < 2:
        raise NoEvidence("fewer than two ranks have recorded steps")
    on_device = all(row["on_device"] is not None for _, row in told)
    name, least = ("on_device", limits["device_mib"]) if on_device else ("resident", limits["host_mib"])
    ratio_limit = limits["device_ratio"] if on_device else limits["host_ratio"]
    memory = {one.rank: row[name] or 0.0 for one, row in told}
    usual = median(memory.values())
    lowest, highest = min(memory.values()), max(memory.values())
    if highest < ratio_limit * lowest or highest - lowest < least:
        return
    middle = (lowest + highest) / 2 if len(memory) == 2 else max(usual, (lowest + highest) / 2)
    ranks = tuple(rank for rank, mib in sorted(memory.items()) if mib >= middle)
    stages = {row["stage"] for _, row in told if row["stage"] is not None}
    what = "device memory" if on_device else "resident memory"
    yield Finding(
        f"{what} differs between ranks: {mebibytes(lowest)} to {mebibytes(highest)}",
        Certainty.LIKELY,
        share=0.1,
        ranks=ranks,
        evidence=(
            f"median of {len(memory)} ranks {mebibytes(usual)}; {highest / max(lowest, 1e-9):.2g} times the lowest",
            *(("the ranks run different stages of a pipeline",) if len(stages) > 1 else ()),
        ),
        advice=(
            "move layers from the fullest pipeline stage to another, or recompute its activations",
            "look for what one rank does alone: evaluation, logging, a copy of the weights for a checkpoint",
            "look at each rank: `probe -t PID --all memory`",
        ),
        try_first="probe -t PID --all compare --by memory",
    )


RULE = Rule(
    "memory-imbalance",
    "memory",
    "Do ranks take about the same memory?",
    SQL,
    judge,
    (
        Threshold("device_ratio", 1.2, "highest over lowest peak of device memory"),
        Threshold("device_mib", 1024.0, "MiB of difference on devices"),
        Threshold("host_ratio", 1.5, "highest over lowest resident memory, in a job on CPUs"),
        Threshold("host_mib", 256.0, "MiB of difference in resident memory"),
    ),
)
