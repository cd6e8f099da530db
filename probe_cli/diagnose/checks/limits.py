"""Limits of the control group: CPU quota, memory, processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.check import Check, Level, Line
from probe_cli.diagnose.finding import NoEvidence
from probe_cli.diagnose.rule import Asked, Row
from probe_cli.text import mebibytes, percent

__all__ = ["CHECK"]

SQL = """
SELECT pressure.*, memory.* FROM (
    SELECT avg(throttled) AS throttled, arg_max(cpu_limit, ts) AS cpu_limit, sum(oom_kills) AS oom_kills,
        arg_max(pids_used, ts) AS pids_used, arg_max(pids_limit, ts) AS pids_limit
    FROM host.pressure WHERE scope <> 'host'
) AS pressure, (
    SELECT cgroup_used - cgroup_page_cache AS used, cgroup_limit AS memory_limit, cgroup, host_available, host_total
    FROM process.memory
) AS memory
"""
NEAR, THROTTLED = 0.9, 0.05


def read(asked: Sequence[Asked]) -> Iterable[Line]:
    rows = [row for one in asked for row in one.rows]
    if not rows:
        raise NoEvidence("the kernel tells no limits")
    for one in asked:
        for row in one.rows:
            yield from (Line(*said, ranks=(one.rank,)) for said in _complaints(row))
    (row, *_) = rows
    cpu = "no CPU quota" if row["cpu_limit"] is None else f"{row['cpu_limit']:.3g} cores"
    limit = row["memory_limit"]
    memory = f"no memory limit ({mebibytes(row['host_available'])} of the host are available)"
    if limit is not None:
        memory = f"{mebibytes(row['used'])} of {mebibytes(limit)} used"
    yield Line(Level.OK, f"{cpu}, {memory}")


def _complaints(row: Row) -> Iterable[tuple[Level, str, str]]:
    if row["memory_limit"] is not None and row["used"] > NEAR * row["memory_limit"]:
        yield (
            Level.BAD,
            (
                f"the control group {row['cgroup']} has used {percent(row['used'] / row['memory_limit'])} of its"
                f" {mebibytes(row['memory_limit'])}: at the limit the kernel kills a process"
            ),
            "more memory for the container, fewer loader workers; see what it holds: `probe PID memory`",
        )
    elif row["memory_limit"] is None and row["host_available"] < (1 - NEAR) * row["host_total"]:
        yield Level.WARN, f"{mebibytes(row['host_available'])} of the host's memory are left", "probe PID memory"
    if (row["throttled"] or 0.0) > THROTTLED:
        yield (
            Level.BAD,
            (
                f"the CPU quota of {row['cpu_limit']:.3g} cores stops the job in {percent(row['throttled'])} of the"
                " periods"
            ),
            "a larger quota (docker --cpus, limits.cpu), or fewer threads and workers",
        )
    if row["pids_limit"] and row["pids_used"] > NEAR * row["pids_limit"]:
        yield (
            Level.BAD,
            f"{row['pids_used']:.0f} of {row['pids_limit']:.0f} processes and threads are in use",
            ("a larger limit (docker --pids-limit), or fewer threads and workers"),
        )


CHECK = Check(
    "limits", "Is the job near a limit of its control group or host?", SQL, read, ("memory-limit-near",), is_live=True
)
