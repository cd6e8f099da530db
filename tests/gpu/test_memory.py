"""Memory of the device: against torch's allocator, by line, in gaps, after an out-of-memory error, and as it leaks."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path

import pytest
from support.waiting import until

from .conftest import Start
from .findings import Findings
from .jobs import ATTACHED, PLANNED, PROGRAMS, Job
from .machine import Machine

HISTORY = {"memory.history": "100000"}


def line_of(program: str, text: str) -> int:
    """Return the number of the first line of a program that has this text."""
    lines = (PROGRAMS / f"{program}.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", [PLANNED, ATTACHED])
def test_memory_is_that_of_torchs_allocator(
    way: str, start: Start, machine: Machine, report: Findings, tmp_path: Path
) -> None:
    job = start("holding", way=way, settings=HISTORY)
    job.ready("begun")
    await_history(job, machine)
    job.tell("history")
    own = job.facts("ready")

    known = job.probe("eval", "float(KNOWN.sum()), str(KNOWN.device), float(KNOWN.max())")
    device = "cuda:0" if machine.has_gpu else "cpu"
    report.same("eval on a tensor of the device", known.stdout.strip(), f"(499500.0, '{device}', 999.0)")
    blocks = job.probe("query", "SELECT * FROM torch.memory_blocks", "--format", "json")
    snapshot = job.probe("memory", "--snapshot", tmp_path / "snapshot.pickle")
    looked = job.envelope("memory", "--format", "envelope")
    if machine.has_gpu:
        after_memory(job, own, report)
        after_blocks(job, own, report)
        kept = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
        used = sum(
            block["size"]
            for segment in kept["segments"]
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        )
        report.same("memory --snapshot: MiB in use", used / 2**20, own["allocated"])
    else:
        for what, done in (("torch.memory_blocks", blocks), ("memory --snapshot", snapshot)):
            report.check(f"{what} without a device", done.stderr, "says so", "no CUDA device" in done.stderr)
    report.check("memory", looked["exit code"], "0, 1 or 3", looked["exit code"] in (0, 1, 3))
    job.tell("busy")
    job.facts("working")
    job.end()
    report.same("exit code of the job", job.wait(), 0)


def await_history(job: Job, machine: Machine) -> None:
    """Wait until the allocator keeps lines."""
    if machine.has_gpu:
        told = "__import__('torch')._C._cuda_isHistoryEnabled()"
        until(lambda: job.probe("eval", told).stdout.strip() == "True", says=job.diagnostics)


def after_memory(job: Job, own: dict[str, float], report: Findings) -> None:
    """Compare torch.memory with the allocator's own numbers at a point at which the job stands still."""
    newest = "SELECT * FROM torch.memory ORDER BY ts DESC LIMIT 1"
    with contextlib.suppress(AssertionError):  # the checks below say what differs
        until(lambda: any(row["allocated"] == own["allocated"] for row in job.query(newest)), 5)
    row = job.query(newest)[0]
    for column in ("allocated", "reserved", "inactive", "requested"):
        report.same(f"torch.memory.{column}, MiB", row[column], own[column])
    report.same("torch.memory.peak_allocated, MiB", row["peak_allocated"], own["peak"])
    report.same("torch.memory.num_segments", row["num_segments"], own["segments"])
    report.check("fragmentation: torch.memory.inactive, MiB", row["inactive"], "80 or more", row["inactive"] >= 76)
    largest = job.query("SELECT max(largest_free) AS mib FROM torch.memory")[0]["mib"]
    report.seen("torch.memory.largest_free, MiB (once a minute)", largest)


def after_blocks(job: Job, own: dict[str, float], report: Findings) -> None:
    """Compare torch.memory_blocks with what the job's lines are known to keep."""
    rows = job.query("SELECT * FROM torch.memory_blocks ORDER BY size DESC")
    report.same("torch.memory_blocks: MiB of all lines", sum(row["size"] for row in rows), own["allocated"])
    for text, mib, num in (("this line keeps 30 MiB", 30.0, 10), ("torch.ones(MIB, device=device) for", 80.0, 20)):
        line = line_of("holding", text)
        named = [row for row in rows if row["lineno"] == line and (row["file"] or "").endswith("holding.py")]
        report.check(
            f"torch.memory_blocks: line {line}", [(row["requested"], row["num_blocks"]) for row in named],
            [(mib, num)], [(row["requested"], row["num_blocks"]) for row in named] == [(mib, num)],
        )  # fmt: skip


@pytest.mark.timeout(120)
def test_running_out_of_memory_leaves_its_evidence(start: Start, machine: Machine, report: Findings) -> None:
    job = start("hog", way=PLANNED, settings=HISTORY)
    own = job.ready()
    await_history(job, machine)
    until(lambda: job.query("SELECT 1 FROM python.steps LIMIT 1"), says=job.tail)
    job.tell("hog")
    job.wait()

    stack = job.query("SELECT func, file, lineno FROM python.backtrace ORDER BY depth")
    ooms = job.query("SELECT * FROM torch.ooms")
    blocks = job.query("SELECT * FROM torch.oom_blocks ORDER BY size DESC")
    diagnosis = job.probe("diagnose")
    memory = job.probe("memory")

    report.check("it dies of its own error", job.process.returncode, 1, job.process.returncode == 1)
    report.check("backtrace after its death", [row["func"] for row in stack], "has hog", "hog" in str(stack))
    if not machine.has_gpu:
        report.same("torch.ooms without a device", ooms, [])
        return
    report.check("torch.ooms", ooms, "one row or more", ooms)
    for row in ooms[:1]:
        report.same("torch.ooms.requested, MiB", row["requested"], 64.0)
        report.within("torch.ooms.limit, MiB, against 2 % of the device", row["limit"], 0.02 * own["total"], 0.01)
        report.check("torch.ooms.allocated, MiB", row["allocated"], f"below {row['limit']}", row["allocated"] > 500)
    line = line_of("hog", "HELD.append")
    top = blocks[0] if blocks else {}
    report.same("torch.oom_blocks: the largest line", top.get("lineno"), line)
    report.check("diagnose", diagnosis.stdout[:200], "speaks of memory", "memory" in diagnosis.stdout)
    report.check("memory", memory.stderr[:400], f"hog.py:{line} held most", f"hog.py:{line} held" in memory.stderr)


@pytest.mark.timeout(120)
def test_the_line_that_leaks_is_named(start: Start, machine: Machine, report: Findings) -> None:
    job = start("leaking", way=ATTACHED)
    job.ready()

    answer = job.envelope("memory", "--leaks", "--steps", 20, "--format", "envelope", timeout_s=90)
    job.end()

    line = line_of("leaking", "this line leaks")
    report.same("exit code", answer["exit code"], 1)
    report.check(
        "the leaking line", answer["leaks"][0]["sentence"], f"leaking.py:{line}",
        f"leaking.py:{line}" in answer["leaks"][0]["sentence"],
    )  # fmt: skip
    if machine.has_gpu:
        told = answer["leaks"][0]["lines"]
        lines = [one for one in told if one["lineno"] == line and "cuda" in one["kind"]]
        report.check("the same line by blocks of the device", lines, "a row", lines)
    report.same("exit code of the job", job.wait(), 0)
