"""The training thread waits for a core.

The kernel counts how long a thread is ready to run and another one has its core: too many threads (each rank starts as
many for operators as the host has cores), too many workers, or another job on the host. The time is real, but it says
nothing about the job's code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT count(run_delay) AS samples, sum(run_delay) / sum(period) AS delay,
    sum(forced_switches) / sum(period) AS forced, sum(cpu) / sum(period) AS cores,
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
    if row["delay"] < limits["delay"]:
        return
    ours = row["cores"] + (row["worker_cores"] or 0.0)
    alone = ours > 0.9 * cpus
    yield Finding(
        f"the training thread waits for a core {percent(row['delay'])} of the time:"
        f" {'the job has more threads at work than cores' if alone else 'other processes take the cores'}",
        Certainty.POSSIBLE,
        share=0.0,  # it is the host's: no finding about the job stands below it
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
    "Does the training thread wait for a core?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("delay", 0.20, "share of the time that the training thread waits for a core"),
        Threshold("samples", 5, "samples, one a second, needed to judge"),
    ),
    explains=("host-busy", "collectives-dominate", "slower-than-best"),
    is_live=True,
)
