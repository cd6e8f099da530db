"""The training thread loses its core to other threads.

A forced switch takes a running thread off its core because another one wants it: too many threads (each rank starts
as many for operators as the host has cores), too many workers, or another job on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS samples, sum(forced_switches) / sum(period) AS forced, sum(cpu) / sum(period) AS cores,
    max(num_threads) AS threads,
    (SELECT value FROM process.env WHERE name = 'cpus the main thread may use') AS cpus,
    (SELECT value FROM process.env WHERE name = 'torch.get_num_threads()') AS torch_threads,
    (SELECT sum((cpu_user + cpu_system) / age) FROM python.workers WHERE age > 2) AS worker_cores
FROM (FROM process.samples ORDER BY ts DESC LIMIT 30)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["samples"] < limits["samples"] or row["cpus"] is None:
        raise NoEvidence(f"{row['samples']} samples of the process, {limits['samples']:.0f} needed: ask again later")
    cpus = float(row["cpus"])
    if row["forced"] < limits["forced"] * cpus:
        return
    ours = row["cores"] + (row["worker_cores"] or 0.0)
    alone = ours > 0.9 * cpus
    yield Finding(
        "the job has more threads at work than cores" if alone else "other processes take the cores from the job",
        Certainty.POSSIBLE,
        share=0.0,
        evidence=(
            f"{row['forced']:.0f} forced switches a second on {cpus:.0f} cores",
            f"the process keeps {row['cores']:.2g} cores busy, its workers {row['worker_cores'] or 0:.2g};"
            f" torch uses {row['torch_threads']} threads",
        ),
        advice=(
            "one rank's share of the cores: OMP_NUM_THREADS = cores / ranks on the host",
            "fewer data-loader workers, and torch.set_num_threads(1) in each of them (the default there)",
            "see who else runs: top, or the scheduler's view of the host",
        ),
        try_first=f"OMP_NUM_THREADS={max(1, int(cpus) // 2)}" if alone else "top",
    )


RULE = Rule(
    "processor-contended",
    "speed",
    "Does the training lose its cores to other threads?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("forced", 300, "forced switches a second and core"),
        Threshold("samples", 5, "samples, one a second, needed to judge"),
    ),
    explains=("slower-than-best",),
    is_live=True,
)
