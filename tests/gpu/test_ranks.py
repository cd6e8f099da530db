"""Ranks that share one device: gloo with two, NCCL with one, since NCCL refuses a second rank on the same GPU."""

from __future__ import annotations

import pytest
from support.targets import MEET

from .conftest import Start
from .findings import Findings
from .jobs import ATTACHED, BARE, PLANNED, SAMPLE_ALL
from .machine import Machine


def torchrun(num_ranks: int) -> list[str]:
    return ["-m", "torch.distributed.run", f"--nproc-per-node={num_ranks}", *MEET]


@pytest.mark.timeout(170)
@pytest.mark.parametrize(("backend", "num_ranks"), [("gloo", 2), ("nccl", 1)])
def test_ranks_are_recorded_and_compute_the_same(
    backend: str, num_ranks: int, start: Start, machine: Machine, report: Findings
) -> None:
    jobs = {
        way: start(
            "ranks", "--backend", backend, way=way, settings=SAMPLE_ALL, launcher=torchrun(num_ranks),
            environ={"TORCH_NCCL_ENABLE_TIMING": "1"},
        )
        for way in (BARE, PLANNED, ATTACHED)
    }  # fmt: skip
    for job in jobs.values():
        job.ready()
        job.tell("attached")
    trained = {way: job.facts("trained") for way, job in jobs.items()}

    used = backend if machine.has_gpu else "gloo"
    for way in (PLANNED, ATTACHED):
        job = jobs[way]
        report.check(
            f"{way}: digests of the ranks' weights", trained[way]["digests"][0][:12], trained[BARE]["digests"][0][:12],
            set(trained[way]["digests"]) == set(trained[BARE]["digests"]) and len(set(trained[way]["digests"])) == 1,
        )  # fmt: skip
        calls = job.query(
            "SELECT op, count(*) AS num, sum(bytes) AS bytes FROM python.collectives GROUP BY op ORDER BY num DESC"
        )
        report.check(f"{way}: python.collectives", calls, "rows", calls)
        entries = job.query(
            "SELECT backend, op, state, count(*) AS num, count(duration) AS timed FROM torch.flight_recorder"
            " GROUP BY backend, op, state ORDER BY num DESC"
        )
        report.check(f"{way}: torch.flight_recorder", entries, f"entries of {used}", used in str(entries))
        if machine.has_gpu and backend == "nccl":
            over = [row for row in entries if row["state"] == "completed"]
            report.check(f"{way}: NCCL entries that are over", over, "most", over)
            timed = [row["timed"] for row in over]
            report.check(f"{way}: of them with a duration", timed, "all", timed and timed[0])
        errors = job.query("SELECT source, message FROM probe.errors")
        report.check(f"{way}: failures of the recorder", errors, "none", not errors)
        verdict = job.envelope("hang", "--format", "envelope")
        report.check(f"{way}: hang", verdict["verdict"]["sentence"], "0, 1 or 3", verdict["exit code"] in (0, 1, 3))
    for way, job in jobs.items():
        job.end()
        report.same(f"{way}: exit code", job.wait(), 0)
