"""Jobs of each kind, planned and attached to while they run: their steps, losses and weights are those of the twin."""

from __future__ import annotations

import contextlib

import pytest
from support.waiting import until

from .conftest import Start
from .findings import Findings
from .jobs import ATTACHED, BARE, PLANNED, SAMPLE_ALL, Job
from .machine import Machine

KINDS = ("eager", "graphs", "amp", "fsdp", "inference", "compiled")
STEPS = 120


@pytest.mark.timeout(170)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_is_recorded_and_computes_the_same(kind: str, start: Start, machine: Machine, report: Findings) -> None:
    jobs = {way: start("kinds", "--kind", kind, way=way, settings=SAMPLE_ALL) for way in (BARE, PLANNED, ATTACHED)}
    missing = [job.ready().get("missing") for job in jobs.values()]
    if missing[0]:
        pytest.skip(missing[0])
    for way in (BARE, PLANNED):
        jobs[way].tell("attached")

    trained = {way: job.facts("trained") for way, job in jobs.items()}

    for way in (PLANNED, ATTACHED):
        report.check(
            f"{way}: digest of the weights", trained[way]["digest"][:12], trained[BARE]["digest"][:12],
            trained[way]["digest"] == trained[BARE]["digest"],
        )  # fmt: skip
        report.same(f"{way}: peak of the allocator, MiB", trained[way]["peak"], trained[BARE]["peak"])
        compare(way, kind, jobs[way], trained[way]["losses"], machine, report)
    for way, job in jobs.items():
        job.end()
        report.same(f"{way}: exit code", job.wait(), 0)


def compare(way: str, kind: str, job: Job, losses: list[float], machine: Machine, report: Findings) -> None:
    """Compare the rows of a job with what the job itself has noted."""
    sql = "SELECT step, loss, sampled, counted, skipped FROM python.steps ORDER BY step"
    least, most = STEPS - 5 if way == PLANNED else STEPS // 2 - 10, STEPS
    if kind == "inference":  # calls are steps once the module has been seen at work, and go on until the end
        most = 10**9
    with contextlib.suppress(AssertionError):  # the check below says what is missing
        until(lambda: len(job.query(sql)) >= least, 30)
    rows = job.query(sql)
    report.check(f"{way}: rows of steps", len(rows), f"{least} to {most}", least <= len(rows) <= most)
    with_loss = [row for row in rows if row["loss"] is not None]
    if kind != "inference":
        wrong = [row["step"] for row in with_loss if row["loss"] != pytest.approx(losses[row["step"]], rel=1e-6)]
        report.check(
            f"{way}: losses that differ from the job's own", f"{len(wrong)} of {len(with_loss)}", 0,
            with_loss and not wrong,
        )  # fmt: skip
    traced = job.query(
        "SELECT device, count(*) AS num, count(device_duration) AS timed, median(device_duration) AS device_s"
        " FROM python.torch_trace WHERE stage = 'forward' GROUP BY device"
    )
    on_device = [row for row in traced if row["device"] and row["device"].startswith(machine.kind)]
    if kind in ("compiled", "graphs") or not machine.has_gpu:  # modules inside may be invisible
        report.seen(f"{way}: module rows", traced)
    else:
        timed = sum(row["timed"] for row in on_device)
        num = sum(row["num"] for row in on_device)
        report.check(f"{way}: module rows with a device time", timed, f"most of {num}", timed > 0.7 * num > 0)
    errors = job.query("SELECT source, message FROM probe.errors")
    report.check(f"{way}: failures of the recorder", errors, "none", not errors)
