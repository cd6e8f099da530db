"""A kernel that never ends is told from a host that never calls."""

from __future__ import annotations

import pytest
from support.waiting import until

from .conftest import Start
from .findings import Findings
from .jobs import PLANNED
from .machine import Machine
from .test_memory import line_of

#: `hang` takes a job without progress for this long as one that stands.
STANDS_S = 12.0
#: Steps that the program takes before it stands still.
STEPS = 60


@pytest.mark.timeout(170)
def test_a_kernel_that_never_ends_is_told_from_a_host_that_never_calls(
    start: Start, machine: Machine, report: Findings
) -> None:
    jobs = {how: start("stuck", "--how", how, way=PLANNED) for how in ("kernel", "host")}
    for job in jobs.values():
        job.ready()
    for how in ("host", "kernel"):  # the kernel last: the other one still needs the device
        jobs[how].tell("attached")
        jobs[how].facts("stuck")
    age = "SELECT epoch(now()) - epoch(max(ts)) AS age FROM python.steps"
    for job in jobs.values():
        until(lambda job=job: job.query(age)[0]["age"] > STANDS_S, 40, job.tail)  # type: ignore[misc]

    looked = {how: job.envelope("hang", "--patience", 0, "--between", 1, "--format", "envelope")
              for how, job in jobs.items()}  # fmt: skip
    stacks = {how: job.probe("backtrace").stdout for how, job in jobs.items()}
    native = {how: job.probe("backtrace", "--native").stdout for how, job in jobs.items()}

    for how, job in jobs.items():
        newest = job.query("SELECT max(step) AS step FROM python.steps")[0]["step"]
        report.same(f"{how}: newest step in python.steps", newest, STEPS - 1)
    text = "sum().item()" if machine.has_gpu else "os.read("
    line = line_of("stuck", text)
    sentences = {how: str(one["verdict"]["sentence"]) for how, one in looked.items()}
    for how, sentence in sentences.items():
        report.same(f"{how}: exit code of hang", looked[how]["exit code"], 1)
        report.seen(f"{how}: hang says", sentence)
    verdict = str(looked["kernel"])
    report.check("kernel: the line of the job", f"stuck.py:{line}", "in the verdict", f"stuck.py:{line}" in verdict)
    report.check("kernel: backtrace", stacks["kernel"][:200], "wait_for_device", "wait_for_device" in stacks["kernel"])
    report.check("host: backtrace", stacks["host"][:200], "never_calls", "never_calls" in stacks["host"])
    report.check("the two verdicts differ in what the rank does", sentences["kernel"], sentences["host"],
                 sentences["kernel"] != sentences["host"])  # fmt: skip
    if machine.has_gpu:
        stack = native["kernel"]
        report.check("kernel: native stack", stack[:200], "waits in libcuda", "cuda" in stack.lower())
        busy = jobs["host"].query("SELECT utilization FROM gpu.samples ORDER BY ts DESC LIMIT 1")
        jobs["kernel"].kill()
        sql = "SELECT utilization FROM gpu.samples ORDER BY ts DESC LIMIT 1"
        until(lambda: jobs["host"].query(sql)[0]["utilization"] < 0.1, 30, lambda: str(jobs["host"].query(sql)))
        report.check("utilization while the kernel runs", busy, "above 0.9", busy and busy[0]["utilization"] > 0.9)
        report.check("utilization with the host alone", jobs["host"].query(sql), "below 0.1", True)
