"""The memory of the host, of the container or of the process is nearly used up.

Which limit comes first differs: the host's own memory, that of a control group (a container, a Slurm job), or ulimit
-v. At the first two the kernel kills a process, often a loader worker; at the third an allocation fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes, percent

__all__ = ["RULE"]

SQL = "FROM process.memory"


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NoEvidence("process.memory has no row: the target has ended, or is on another system")
    (row,) = rows
    for where, used, limit, what in _near(row):
        share = limits["host_share"] if where == "host" else limits["share"]
        if limit and used / limit >= share and limit - used < limits["left"]:
            yield _finding(row, where, used, limit, what)


def _near(row: Row) -> Iterable[tuple[str, float, float | None, str]]:
    """Yield each limit with what is used of it."""
    cgroup_used = (row["cgroup_used"] or 0.0) - (row["cgroup_page_cache"] or 0.0)
    yield "container", cgroup_used, row["cgroup_limit"], f"the limit of the control group {row['cgroup']}"
    yield "ulimit", row["address_space"] or 0.0, row["address_limit"], "the limit of the address space (ulimit -v)"
    if row["host_total"] is not None:
        yield "host", row["host_total"] - (row["host_available"] or 0.0), row["host_total"], "the memory of the host"


def _finding(row: Row, where: str, used: float, limit: float, what: str) -> Finding:
    parts = [
        (row["workers_private"] or row["workers_rss"] or 0.0, f"{row['num_workers'] or 0} loader workers", (
            "fewer loader workers, or a smaller prefetch_factor",)),
        (row["anonymous"] or 0.0, "tensors and Python objects of the process", (
            "see what the process holds, and whether it grows: `probe PID memory`",)),
        (row["cgroup_shmem"] or row["shmem"] or 0.0, "shared memory and /dev/shm", (
            "remove what ended jobs have left in /dev/shm, or lower prefetch_factor",)),
    ]  # fmt: skip
    parts.sort(key=lambda part: -part[0])
    advice = [line for _, _, lines in parts for line in lines]
    raise_it = {
        "container": "raise the limit: --memory, resources.limits.memory, #SBATCH --mem",
        "ulimit": "raise it: ulimit -v unlimited",
        "host": "fewer ranks or jobs on the host",
    }[where]
    return Finding(
        f"{percent(used / limit)} of {what} is in use: {mebibytes(limit - used)} are left",
        Certainty.CERTAIN,
        where=where,
        evidence=(
            f"{mebibytes(used)} of {mebibytes(limit)}",
            "largest parts: " + ", ".join(f"{name} {mebibytes(mib)}" for mib, name, _ in parts if mib > 1),
        ),
        advice=(*advice, raise_it),
        try_first="probe PID memory",
    )


RULE = Rule(
    "memory-limit-near",
    "memory",
    "Is a limit of host memory near?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.90, "share of the limit that is in use"),
        Threshold("host_share", 0.95, "the same of the host's own memory, which others use as well"),
        Threshold("left", 8192.0, "MiB left from which on it is near"),
    ),
)
