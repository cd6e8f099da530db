"""A GPU of the job runs below its clock.

A power cap, heat, or a slow-down by the hardware lowers the clock, and all ranks wait for the slowest one. A clock that
is low because the GPU has nothing to do is no fault, nor is one that is held back by the power limit that the GPU comes
with: large products of matrices in 16 bits reach it. Never seen on a real GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT device, any_value(name) AS name, count(*) AS samples, median(sm_clock) AS clock, max(sm_clock_max) AS clock_max,
    avg(CASE WHEN throttle IS NOT NULL AND throttle NOT LIKE '%idle%' THEN 1.0 ELSE 0.0 END) AS throttled,
    mode(throttle) AS reason, max(temperature) AS temperature, avg(power) AS power, max(power_limit) AS power_limit,
    max(power_default) AS power_default
FROM (FROM gpu.samples WHERE pid IS NOT NULL AND utilization > 0.3 AND sm_clock IS NOT NULL ORDER BY ts DESC LIMIT 300)
GROUP BY device
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no GPU of the job is known, or none works")
    if max(row["samples"] for row in rows) < limits["samples"]:
        raise NoEvidence(f"fewer than {limits['samples']:.0f} samples of the GPU at work: ask again later")
    for row in rows:
        clock, most = row["clock"] or 0.0, row["clock_max"] or 0.0
        is_low = most > 0 and clock < limits["clock"] * most
        if row["throttled"] < limits["share"] or not is_low or _is_at_its_own_limit(row):
            continue
        yield Finding(
            f"{row['device']} is throttled {percent(row['throttled'])} of the time: {row['reason']}",
            Certainty.LIKELY,
            cost_s=None,
            share=1 - clock / most,
            where=str(row["device"]),
            evidence=(
                f"clock {clock:.0f} of {most:.0f} MHz on {row['name']}, {row['temperature']:.0f} °C at most,"
                f" {row['power']:.0f} of {row['power_limit']:.0f} W",
            ),
            advice=(
                "look at the cooling and at the neighbours in the chassis: nvidia-smi -q -d PERFORMANCE",
                "a power cap may be set: nvidia-smi -q -d POWER",
            ),
            try_first="nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE",
        )


def _is_at_its_own_limit(row: Row) -> bool:
    """Whether it draws the power that it was made for, as large products of matrices in 16 bits do."""
    return bool(row["reason"] == "power cap" and row["power_limit"] >= (row["power_default"] or float("inf")))


RULE = Rule(
    "gpu-throttled",
    "speed",
    "Do the job's GPUs run at their clock?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.30, "share of the samples at work with a reason for a reduced clock"),
        Threshold("clock", 0.85, "clock as a part of its maximum below which it is told"),
        Threshold("samples", 5, "samples at work needed to judge"),
    ),
    explains=("rank-holds-up", "slower-than-best"),
    is_live=True,
)
