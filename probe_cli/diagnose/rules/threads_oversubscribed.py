"""The ranks of a host start more threads for operators than it has cores.

torch starts as many threads as it sees cores, in every rank. Two ranks with eight threads each on eight cores wait for
each other in every operator: OpenMP's threads spin, and an operator takes as long as its last thread. torchrun sets
OMP_NUM_THREADS=1 for that reason, other launchers do not. A container sees the cores of the host, not its quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Asked, Limits, Rule, Threshold
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS samples, sum(cpu) / sum(period) AS cores, coalesce(sum(run_delay) / sum(period), 0) AS delay,
    coalesce(sum(forced_switches) / sum(period), 0) AS forced,
    (SELECT try_cast(value AS BIGINT) FROM process.env WHERE name = 'cpus the main thread may use') AS cpus,
    (SELECT try_cast(value AS BIGINT) FROM process.env WHERE name = 'torch.get_num_threads()') AS threads
FROM (FROM process.samples ORDER BY ts DESC LIMIT 30)
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    told = [(one, one.rows[0]) for one in asked if one.rows and one.rows[0]["samples"] >= limits["samples"]]
    known = [(one, row) for one, row in told if row["threads"] is not None and row["cpus"] is not None]
    if not known:
        raise NoEvidence(f"no rank told its threads and {limits['samples']:.0f} samples of its processor time")
    for host in dict.fromkeys(one.host for one, _ in known):
        here = [(one, row) for one, row in known if one.host == host]
        threads, cpus = sum(row["threads"] for _, row in here), max(row["cpus"] for _, row in here)
        cores, delay = sum(row["cores"] for _, row in here), max(row["delay"] for _, row in here)
        many = threads >= limits["times"] * cpus and max(row["threads"] for _, row in here) > 1
        forced = sum(row["forced"] for _, row in here)
        if not many or (cores < limits["busy"] * cpus and forced < limits["forced"] * cpus):
            continue
        yield Finding(
            f"{threads} threads for operators run on {cpus} cores"
            + (f", {len(here)} ranks with {here[0][1]['threads']} each" if here[1:] else ""),
            Certainty.LIKELY,
            share=delay,
            ranks=tuple(sorted(one.rank for one, _ in here)),
            where=host if here[1:] else "",
            evidence=(
                f"they keep {cores:.2g} of {cpus} cores busy; a training thread waits for a core"
                f" {percent(delay)} of the time",
                f"{forced:.0f} times a second one of their threads loses its core to another",
            ),
            advice=(
                "give each rank its part: OMP_NUM_THREADS = cores / ranks of the host, or torch.set_num_threads",
                "bind ranks to cores of their own: numactl, taskset, or the scheduler's --cpu-bind",
            ),
            try_first=f"OMP_NUM_THREADS={max(1, cpus // len(here))}",
        )


RULE = Rule(
    "threads-oversubscribed",
    "speed",
    "Are there more threads for operators than cores?",
    SQL,
    judge,
    (
        Threshold("times", 2.0, "threads for each core"),
        Threshold(
            "busy", 0.5, "share of the cores that the ranks keep busy, which may be asked while others work, too"
        ),
        Threshold("forced", 1000.0, "forced switches a second and core, which tell it where others keep them busy"),
        Threshold("samples", 5, "samples, one a second, needed to judge"),
    ),
    explains=("processor-contended", "host-busy", "waits-rotate", "collectives-dominate"),
    is_live=True,
)
