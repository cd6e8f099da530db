"""What `diagnose` says of a job that its GPU limits, that launching kernels limits, and whose model is on the CPU."""

from __future__ import annotations

import pytest
from support.waiting import until

from .conftest import Start
from .findings import Findings
from .jobs import PLANNED
from .machine import Machine

#: Samples of the GPU, one a second, during the steps.
SAMPLES = 14
RECENT = "SELECT count(*) AS num FROM gpu.samples WHERE ts > (SELECT min(ts) + INTERVAL 1 SECOND FROM python.steps)"
#: Rules that must speak, and those that must not.
EXPECTED = {
    "device": (set(), {"host-bound", "cuda-mismatch", "data-bound", "memory-fragmented", "device-shared"}),
    "launches": ({"host-bound"}, {"cuda-mismatch", "data-bound", "memory-fragmented", "device-shared"}),
    "cpu": ({"cuda-mismatch"}, {"host-bound", "device-shared"}),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("by", list(EXPECTED))
def test_the_limit_of_a_job_is_told(by: str, start: Start, machine: Machine, report: Findings) -> None:
    job = start("limited", "--by", by, way=PLANNED)
    job.ready()
    if machine.has_gpu:  # the first query starts the host server, which samples
        until(lambda: job.query(RECENT)[0]["num"] >= SAMPLES, 60, job.tail)

    found = job.envelope("diagnose", "--format", "envelope")
    job.end()

    said = {row["rule"] for row in found["rows"]}
    told = [f"{row['rule']}: {row['sentence']}" for row in found["rows"]]
    report.check("exit code", found["exit code"], "0, 1 or 3", found["exit code"] in (0, 1, 3))
    if machine.has_gpu:
        speaks, silent = EXPECTED[by]
        report.check(f"{by}: what is said", told, f"has {sorted(speaks)}", speaks <= said)
        report.check(f"{by}: what is not", told, f"none of {sorted(silent)}", not said & silent)
    else:
        report.seen(f"{by}: what is said", told)
