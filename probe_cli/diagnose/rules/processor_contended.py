"""The training thread waits for a core.

The kernel counts how long a thread is ready to run and another one has its core: too many threads (each rank starts as
many for operators as the host has cores), too many workers, or another job on the host. The time is real, but it says
nothing about the job's code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Asked, Limits, Row, Rule, Threshold
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT count(run_delay) AS samples, sum(run_delay) / sum(period) AS delay,
    sum(forced_switches) / sum(period) AS forced, sum(cpu) / sum(period) AS cores,
    max(num_threads) AS threads,
    (SELECT value FROM process.env WHERE name = 'cpus the main thread may use') AS cpus,
    (SELECT value FROM process.env WHERE kind = 'hardware' AND name = 'cpus') AS host_cpus,
    (SELECT value FROM process.env WHERE name = 'torch.get_num_threads()') AS torch_threads,
    (SELECT sum((cpu_user + cpu_system) / age) FROM python.workers WHERE age > 2) AS worker_cores
FROM (FROM process.samples ORDER BY ts DESC LIMIT 30)
"""
#: Share of the cores from which on it is the job that takes them, and where its ranks have more threads than there are.
FULL, MOST = 0.9, 0.5


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    told = [(one, one.rows[0]) for one in asked if one.rows and one.rows[0]["cpus"] is not None]
    if not (known := [(one, row) for one, row in told if row["samples"] >= limits["samples"]]):
        samples = max((row["samples"] for _, row in told), default=0)
        raise NoEvidence(f"{samples} samples of the process, {limits['samples']:.0f} needed: ask again later")
    on_host: dict[str, float] = defaultdict(float)
    threads: dict[str, int] = defaultdict(int)
    for one, row in known:
        on_host[one.host] += _cores(row)
        # Beside those for operators, one that carries what the ranks exchange.
        threads[one.host] += int(row["torch_threads"] or 1) + (one.world_size > 1)
    for one, row in known:
        if row["delay"] < limits["delay"]:
            continue
        cpus, together = int(row["cpus"]), on_host[one.host]
        host_cpus = int(row["host_cpus"] or cpus)
        full = MOST if threads[one.host] > host_cpus else FULL
        alone = _cores(row) > FULL * cpus or together > full * host_cpus
        yield Finding(
            f"the training thread waits for a core {percent(row['delay'])} of the time:"
            f" {'the job has more threads at work than cores' if alone else 'other processes take the cores'}",
            Certainty.POSSIBLE,
            share=0.0,  # it is the host's: no finding about the job stands below it
            ranks=(one.rank,),
            evidence=(
                f"{row['forced']:.0f} forced switches a second on {cpus} cores",
                f"the process keeps {row['cores']:.2g} cores busy, its workers {row['worker_cores'] or 0:.2g}, all"
                f" ranks of the host {together:.2g}; torch uses {row['torch_threads']} threads",
            ),
            advice=(
                "one rank's share of the cores: OMP_NUM_THREADS = cores / ranks on the host",
                "fewer data-loader workers, and torch.set_num_threads(1) in each of them (the default there)",
                "see who else runs: top, or the scheduler's view of the host",
            ),
            try_first=f"OMP_NUM_THREADS={max(1, cpus // 2)}" if alone else "top",
        )


def _cores(row: Row) -> float:
    return float(row["cores"] + (row["worker_cores"] or 0.0))


RULE = Rule(
    "processor-contended",
    "speed",
    "Does the training thread wait for a core?",
    SQL,
    judge,
    (
        Threshold("delay", 0.20, "share of the time that the training thread waits for a core"),
        Threshold("samples", 5, "samples, one a second, needed to judge"),
    ),
    explains=("host-busy", "slower-than-best"),
    is_live=True,
)
