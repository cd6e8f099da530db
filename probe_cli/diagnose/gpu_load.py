"""What the host of a rank does while its GPU works costs nothing.

Kernels are launched ahead of the device. Where the device is the limit, the training thread stands in `.item()`, in
`next()` of the loader or in a long line of Python for much of the step, and the step would not be shorter without it:
only the time in which the GPU has nothing to do can be gained. NVML tells its share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.text import percent

from .finding import Certainty, Finding
from .rule import Limits, Row

__all__ = ["NAME", "SQL", "beside_gpu"]

NAME = "gpu-load"
#: Samples of the GPU from the seconds of the newest steps: what it did before them says nothing.
SQL = """
WITH recent AS (FROM python.steps WHERE ts > (SELECT max(ts) FROM python.steps) - INTERVAL 60 SECOND),
extent AS (SELECT count(*) AS steps, sum(duration) AS lasted, sum(data_wait) AS waited, median(duration) AS usual,
    min(ts) AS first, max(ts) AS last FROM recent)
SELECT (SELECT count(*) FROM torch.memory) AS on_device,
    (SELECT count(*) FROM gpu.samples WHERE pid IS NOT NULL) AS known,
    count(utilization) AS samples, avg(utilization) AS utilization,
    any_value(steps) AS steps, any_value(lasted) AS lasted, any_value(waited) AS waited, any_value(usual) AS usual
FROM extent LEFT JOIN (FROM gpu.samples WHERE pid IS NOT NULL) ON ts BETWEEN first + INTERVAL 1 SECOND AND last
"""
#: Samples, one a second, needed to judge by.
ENOUGH = 4


def beside_gpu(found: Iterable[Finding], loads: dict[int, Sequence[Row]], limits: Limits) -> list[Finding]:
    """Return the findings of a rule about the host with the part of their cost that the GPU leaves; without those that
    it leaves less of than the rule asks for. `loads` are the rows of `SQL` by rank."""
    told = []
    for one in found:
        row = next((row for rank in one.ranks for row in loads.get(rank, ())), None)
        if one.share is None or row is None or not row["on_device"]:
            told.append(one)
        elif row["samples"] < ENOUGH:
            unknown = "how busy its GPU is meanwhile is not known: it may cost nothing"
            told.append(replace(one, certainty=Certainty.POSSIBLE, evidence=(*one.evidence, unknown)))
        else:
            idle = 1 - row["utilization"]
            if idle >= one.share:
                told.append(one)
            elif idle >= limits.get("share", 0.0):
                cost_s = None if one.cost_s is None else one.cost_s * idle / one.share
                known = f"its GPU works {percent(1 - idle)} of the time, so that no more than the rest can be gained"
                told.append(replace(one, share=idle, cost_s=cost_s, evidence=(*one.evidence, known)))
    return told
