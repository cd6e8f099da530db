"""The GPU as NVML shows it, against nvidia-smi; and who uses it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from support.waiting import until

from .conftest import Start
from .findings import Findings
from .jobs import PLANNED, probe
from .machine import Machine

FIELDS = {
    "memory.total": "memory_total",
    "memory.used": "memory_used",
    "utilization.gpu": "utilization",
    "power.draw": "power",
    "enforced.power.limit": "power_limit",
    "power.default_limit": "power_default",
    "temperature.gpu": "temperature",
    "clocks.sm": "sm_clock",
    "clocks.max.sm": "sm_clock_max",
    "clocks.mem": "memory_clock",
}
#: By how much two looks a second apart may differ: share, and in the unit of the column.
SLACK = {"memory_used": (0.02, 64), "utilization": (0.1, 0.15), "power": (0.25, 40), "temperature": (0.1, 6)}


def nvidia_smi() -> dict[str, str]:
    """Return what nvidia-smi says of the first GPU, by its field."""
    fields = [*FIELDS, "uuid", "clocks_throttle_reasons.active"]
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "--id=0"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nvidia-smi: {done.stdout}{done.stderr}")
    return dict(zip(fields, (text.strip() for text in done.stdout.strip().split(",")), strict=False))


@pytest.mark.timeout(120)
def test_gpu_samples_are_what_nvidia_smi_says(start: Start, machine: Machine, report: Findings) -> None:
    job = start("holding", way=PLANNED)
    job.ready("begun")
    job.tell("history")
    job.facts("ready")
    job.tell("busy")
    job.facts("working")
    if not machine.has_gpu:
        answer = job.probe("query", "SELECT * FROM gpu.samples")
        job.end()
        report.check("gpu.samples without a GPU", answer.stderr, "says why", "gpu.samples has no rows" in answer.stderr)
        return

    def newest() -> dict[str, object]:
        rows = job.query("SELECT * FROM gpu.samples ORDER BY ts DESC, gpu LIMIT 1")
        return rows[0] if rows else {}

    until(lambda: (newest().get("utilization") or 0) > 0.5, 20, lambda: str(newest()))  # type: ignore[operator]
    said, row = nvidia_smi(), newest()
    job.end()

    report.same("uuid", row["uuid"], said["uuid"])
    report.same("device in the target", row["device"], "cuda:0")
    report.same("pid of the target", row["pid"], job.pid)
    for field, column in FIELDS.items():
        if not _is_number(said[field]):
            report.seen(column, row[column], f"nvidia-smi {field}: {said[field]}")
            continue
        scale = 0.01 if column == "utilization" else 1.0
        share, slack = SLACK.get(column, (0.02, 60.0 if "clock" in column else 1.0))
        ours = row[column]
        report.within(column, float(str(ours)) if ours is not None else None, float(said[field]) * scale, share, slack)
    report.seen("throttle", row["throttle"], f"nvidia-smi {said['clocks_throttle_reasons.active']}")


@pytest.mark.timeout(120)
def test_throttling_is_visible(gpu: Machine, start: Start, report: Findings) -> None:
    """The clocks rise from idle under load, and each sample says what holds them back, in the bits of nvidia-smi."""
    job = start("holding", way=PLANNED)
    job.ready("begun")
    job.tell("history")
    job.facts("ready")
    job.tell("busy")
    job.facts("working")

    def samples(where: str) -> list[dict[str, object]]:
        sql = f"SELECT sm_clock, power, throttle, utilization FROM gpu.samples WHERE {where} ORDER BY ts DESC LIMIT 3"
        return job.query(sql)

    until(lambda: samples("utilization > 0.5"), 20, lambda: str(samples("true")))
    bits = int(nvidia_smi()["clocks_throttle_reasons.active"], 16)
    busy = samples("utilization > 0.5")
    job.end()

    words = str(busy[0]["throttle"])
    report.check("clock under load, MHz", busy[0]["sm_clock"], "above 500", float(str(busy[0]["sm_clock"])) > 500)
    report.check("power cap", words, f"bit 0x4 of {bits:#x}", ("power cap" in words) == bool(bits & 4))
    report.check("idle", words, "not under load", "idle" not in words)


@pytest.mark.timeout(120)
def test_two_processes_that_share_the_device_are_told_apart(start: Start, machine: Machine, report: Findings) -> None:
    jobs = [start("holding", way=PLANNED) for _ in range(2)]
    for job in jobs:
        job.ready("begun")
    jobs[0].tell("history")
    own = jobs[0].facts("ready")
    if not machine.has_gpu:
        report.same("rows of gpu.processes without a GPU", jobs[0].query("SELECT * FROM gpu.processes"), [])
        return

    def allocated(at: int) -> float:
        rows = jobs[at].query("SELECT allocated FROM torch.memory ORDER BY ts DESC LIMIT 1")
        return float(rows[0]["allocated"]) if rows else 0.0

    eventually(lambda: allocated(0) == own["allocated"])
    report.same("torch.memory of the first, MiB", allocated(0), own["allocated"])
    report.check("torch.memory of the second, MiB", allocated(1), "below 1", 0 < allocated(1) < 1)
    users = jobs[0].query("SELECT process, pid, used FROM gpu.processes")
    pids = {job.pid for job in jobs}
    seen = {row["process"] for row in users}
    report.check(
        "gpu.processes", sorted(seen), f"has {sorted(pids)}, or the driver hides PIDs in this container",
        pids <= seen or not users or not (seen & pids),
    )  # fmt: skip
    report.seen("memory of each there, MiB", [row["used"] for row in users])
    listing = probe("list")
    report.check("probe list", listing.stdout[:200], "both", all(str(pid) in listing.stdout for pid in pids))


def eventually(condition: Callable[[], bool]) -> None:
    """Wait a few seconds for a condition that is checked afterwards."""
    try:
        until(condition, 5)
    except AssertionError:
        return


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
