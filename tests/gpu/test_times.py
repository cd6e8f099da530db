"""Times of the device, against CUDA events of the job's own and against torch's profiler."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from support.waiting import until

from .conftest import Start
from .findings import Findings
from .jobs import ATTACHED, PLANNED, SAMPLE_ALL
from .machine import Machine

SHARE = 0.05


@pytest.mark.timeout(150)
@pytest.mark.parametrize("way", [PLANNED, ATTACHED])
def test_device_times_are_those_of_the_jobs_own_events_and_profiler(
    way: str, start: Start, machine: Machine, report: Findings
) -> None:
    job = start("timed", way=way, settings=SAMPLE_ALL)
    job.ready()
    job.tell("attached")
    sql = (
        "SELECT step, module, coalesce(device_duration, duration) AS took, device_duration, allocated"
        " FROM python.torch_trace WHERE stage = 'forward' ORDER BY step"
    )
    rows: list[dict[str, Any]] = []
    until(lambda: rows.extend(job.query(sql)[len(rows) :]) or len(rows) > 400, says=job.tail)
    job.tell("calm")
    profile = job.envelope("profile", "--steps", 5, "--format", "envelope", timeout_s=100)
    job.tell("profile")
    profiled = job.facts("profiled")
    final = job.end()

    own = final["times"]
    timed = [row for row in rows if row["module"] in own and row["step"] < final["steps"]]
    report.check("forwards with a time", len(timed), "at least 60", len(timed) >= 60)
    if machine.has_gpu:
        nulls = sum(row["device_duration"] is None for row in timed)
        report.check("of them without a time of the device", nulls, f"few of {len(timed)}", nulls < 0.2 * len(timed))
    for module, seconds in own.items():
        pairs = [
            (row["took"], seconds[row["step"]])
            for row in timed
            if row["module"] == module
            and row["step"] < len(seconds)
            and (row["device_duration"] is not None or not machine.has_gpu)
        ]
        if not pairs:
            report.check(f"{module}: seconds", None, "the job's own", False)
            continue
        ratio = median(ours / theirs for ours, theirs in pairs)
        report.within(f"{module}: device time / own events", ratio, 1.0, SHARE if machine.has_gpu else 1.0)
        far = sum(abs(ours / theirs - 1) > SHARE for ours, theirs in pairs)
        limit = 0.1 * len(pairs) if machine.has_gpu else len(pairs)
        report.check(f"{module}: forwards more than 5 % off", far, f"at most a tenth of {len(pairs)}", far <= limit)

    kernels = [row for row in profile["rows"] if row["device"] == machine.kind]
    column = "self_device_time" if machine.has_gpu else "self_cpu_time"
    ours = sum(row[column] for row in kernels) / 5
    if machine.has_gpu:
        what = "probe profile: seconds of kernels a step, against torch's profiler"
        report.within(what, ours, profiled["seconds"], SHARE)
    else:
        report.seen("probe profile: seconds of operators a step", ours, profiled["seconds"])
    report.check("probe profile: kernels", len(kernels), "at least 3", len(kernels) >= 3)

    if machine.has_gpu:
        model = {row["step"]: row["allocated"] for row in rows if row["module"] == "Timed"}
        wrong = [step for step, mib in model.items() if step < final["steps"] and mib != final["allocated"][step]]
        report.check(
            "allocated at the end of the model's forward, against torch.cuda.memory_allocated there",
            f"{len(wrong)} of {len(model)} differ", "none", model and not wrong,
        )  # fmt: skip
