"""Growth of a target's memory, for the rules that name what grows: judged as `probe … memory` judges it.

Plain functions over rows: the memory that the process and its workers hold themselves, that of each device, and what
all processes use of /dev/shm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from probe_cli.cluster.memory.limits import Limit, headroom, limit_of_device, limits_of_host
from probe_cli.cluster.memory.look import CHILDREN, OWN, SHM
from probe_cli.cluster.memory.trend import MIN_SAMPLES, Sample, State, Trend, trend, weighed

from .rule import Row

__all__ = ["OF_EXCEPTIONS", "SERIES", "Growth", "growing", "is_seen", "too_early"]

#: What to do where the items of a container are exceptions, as `python.containers` calls it.
OF_EXCEPTIONS = (
    "keep the text, str(error): an exception keeps the frames that it came through, with all their tensors",
    "or cut them off: error.with_traceback(None)",
)
#: A row for each series, thinned out, with what is known of its limits.
SERIES = f"""
WITH seen AS (
    SELECT '{OWN}' AS of, epoch(ts) AS t, step, rss - rss_shared AS mib, vm_data - mib AS untouched FROM process.samples
    UNION ALL SELECT '{CHILDREN}', epoch(ts), step, children_rss - children_shared, NULL FROM process.samples
        WHERE num_children > 0
    UNION ALL SELECT '{SHM}', epoch(ts), step, shm_used, NULL FROM process.samples
    UNION ALL SELECT device, epoch(ts), step, allocated, NULL FROM torch.memory
), series AS (FROM seen WHERE step >= (SELECT coalesce(min(step) + 5, -1) FROM python.steps)
), extent AS (SELECT of, min(t) AS began, max(t) AS ended FROM series WHERE mib IS NOT NULL GROUP BY of),
parts AS (
    SELECT of, max(t) AS t, max(step) AS step, min(mib) AS mib, min(untouched) AS untouched
    FROM series JOIN extent USING (of)
    WHERE mib IS NOT NULL GROUP BY of, least(79, floor((t - began) / greatest(ended - began, 1e-6) * 80))),
devices AS (SELECT device, arg_max(allocated, ts) AS allocated, arg_max(reserved, ts) AS reserved
    FROM torch.memory GROUP BY device),
gpus AS (SELECT device, arg_max(memory_used, ts) AS used, arg_max(memory_total, ts) AS total FROM gpu.samples
    WHERE device IS NOT NULL GROUP BY device)
SELECT of, list({{'t': t, 'step': step, 'mib': mib, 'untouched': untouched}} ORDER BY t) AS samples,
    (SELECT now FROM process.memory AS now) AS now,
    (SELECT {{'allocated': allocated, 'reserved': reserved, 'used': used, 'total': total}}
        FROM devices LEFT JOIN gpus USING (device) WHERE device = of) AS device
FROM parts GROUP BY of
"""


@dataclass(frozen=True)
class Growth:
    """A series that grows, its first and last value in MiB, and the limit that is nearest."""

    of: str
    first: float
    last: float
    trend: Trend
    limit: Limit | None

    @property
    def mib(self) -> float:
        """Growth in the time seen."""
        return self.trend.per_second * self.trend.span_s


def is_seen(rows: Iterable[Row]) -> bool:
    """Return whether any series is long enough to be judged."""
    return any(len(row["samples"]) >= MIN_SAMPLES for row in rows)


def growing(rows: Iterable[Row], least_mib: float, *, is_weighed: bool = True) -> Iterator[Growth]:
    """Yield the series that grow, by `least_mib` at least in the time seen. Not weighed, what may be the warm-up of a
    job is among them: for rules that see what grows."""
    for found in _grown(rows, least_mib, is_weighed):
        if found.trend.state is State.GROWS:
            yield found


def too_early(rows: Iterable[Row], least_mib: float) -> Growth | None:
    """A series that grows and may yet be the warm-up of a job; its trend says how long it takes to tell."""
    return next((found for found in _grown(rows, least_mib, True) if found.trend.wait_s is not None), None)


def _grown(rows: Iterable[Row], least_mib: float, is_weighed: bool) -> Iterator[Growth]:
    for row in rows:
        samples = [
            Sample(one["t"], one["step"] if one["step"] >= 0 else None, one["mib"], one["untouched"])
            for one in row["samples"]
        ]
        # What ends no higher than it was in its middle needs no test.
        if samples[-1].mib - samples[len(samples) // 2].mib < least_mib / 2:
            continue
        limits = _limits(row)
        nearest = min(limits, key=lambda limit: limit.left, default=None)
        judged = weighed(trend(samples), headroom(limits)) if is_weighed else trend(samples)
        found = Growth(row["of"], samples[0].mib, samples[-1].mib, judged, nearest)
        if found.mib >= least_mib:
            yield found


def _limits(row: Row) -> list[Limit]:
    device = row["device"]
    if device is None:
        return limits_of_host(row["of"], row["now"])
    return limit_of_device(row["of"], device["total"], device["used"], device["reserved"], device["allocated"])
