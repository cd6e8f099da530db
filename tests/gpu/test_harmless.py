"""What Probe must not do to a job on a GPU: wait for the device, allocate on it, initialise CUDA, break a capture."""

from __future__ import annotations

import subprocess

import pytest
from support.waiting import until

from .conftest import Start
from .findings import Findings
from .jobs import ATTACHED, PLANNED, SAMPLE_ALL
from .machine import Machine

#: Reads that go through every part of ours that speaks to CUDA.
READS: tuple[tuple[object, ...], ...] = (
    ("query", "SELECT * FROM torch.memory ORDER BY ts DESC LIMIT 5"),
    ("query", "SELECT * FROM torch.memory_blocks"),
    ("query", "SELECT * FROM torch.tensors"),
    ("query", "SELECT * FROM torch.flight_recorder"),
    ("query", "SELECT * FROM process.env"),
    ("query", "SELECT * FROM gpu.samples"),
    ("query", "SELECT * FROM gpu.processes"),
    ("backtrace",),
    ("memory",),
    ("nan", "--timeout", 10),
    ("grads", "--timeout", 10),
)


@pytest.mark.timeout(150)
def test_nothing_waits_for_the_device_or_allocates_on_it(start: Start, machine: Machine, report: Findings) -> None:
    job = start("unwaited", way=ATTACHED)
    facts = job.facts("ready")
    job.tell("before")
    bare = job.facts("ahead-before")
    free = _free_mib(machine)
    job.ready()
    after_attach = _free_mib(machine)
    job.configure(**{"trace.every": "20"})
    until(lambda: job.query("SELECT 1 FROM python.steps LIMIT 1"), says=job.tail)
    job.configure(**SAMPLE_ALL)
    until(lambda: job.query("SELECT 1 FROM python.torch_trace WHERE stage = 'backward' LIMIT 1"), says=job.tail)
    job.tell("after")
    recorded = job.facts("ahead-after")
    codes = {" ".join(map(str, read)): job.probe(*read).returncode for read in READS}
    errors = job.query("SELECT source, message FROM probe.errors")
    job.end()

    report.check("exit code under torch's sync debug mode 'error'", job.wait(), 0, job.wait() == 0)
    report.check("failures of the recorder there", errors, "none", not errors)
    report.check("commands", codes, "0, or 1 to 3 with a reason", set(codes.values()) <= {0, 1, 2, 3})
    report.check("host runs ahead of a sleeping device, without Probe", bare["asleep"], True, bare["asleep"])
    report.check("host runs ahead of it with every step sampled", recorded["asleep"], True, recorded["asleep"])
    steps = bare["steps"]
    report.seen("host time of a step, ms, before → every step sampled",
                f"{bare['host_s'] / steps * 1e3:.3f} → {recorded['host_s'] / steps * 1e3:.3f}")  # fmt: skip
    report.seen("allocations of torch's allocator a step, before → every step deep",
                f"{bare['allocations'] / steps:.1f} → {recorded['allocations'] / steps:.1f}")  # fmt: skip
    if free is not None and after_attach is not None:
        report.check("memory of the device that the attach took, MiB", free - after_attach, 0, free == after_attach)
    assert facts["pid"] == job.pid


@pytest.mark.timeout(120)
def test_a_nan_is_found_without_waiting_for_the_device(start: Start, report: Findings) -> None:
    job = start("unwaited", way=PLANNED)
    job.ready()
    job.tell("plant")

    found = job.envelope("nan", "--hunt", "--seconds", 30, "--format", "envelope")
    errors = job.query("SELECT source, message FROM probe.errors")
    job.end()

    report.same("exit code of the hunt", found["exit code"], 1)
    report.check("what it names", str(found)[:200], "Model.faulty", "faulty" in str(found))
    report.check("failures of the recorder", errors, "none", not errors)
    report.same("exit code of the job under sync debug mode 'error'", job.wait(), 0)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", [PLANNED, ATTACHED])
def test_a_process_without_cuda_stays_so(way: str, start: Start, report: Findings) -> None:
    job = start("bystander", way=way)
    job.ready()

    job.configure(**{"memory.history": "1000"})
    codes = [job.probe(*read).returncode for read in READS if read[0] not in ("nan", "grads")]
    answer = job.probe("eval", "1 + 1").stdout.strip()
    rows = job.query("SELECT * FROM torch.memory")
    final = job.end()

    report.check("commands", codes, "0, or 1 to 3 with a reason", set(codes) <= {0, 1, 2, 3})
    report.same("eval 1 + 1", answer, "2")
    report.same("rows of torch.memory", rows, [])
    report.same("CUDA initialised at the end", final["initialized"], False)
    report.same("devices of the driver opened meanwhile", final["opened"], [])


@pytest.mark.timeout(150)
@pytest.mark.parametrize("way", [PLANNED, ATTACHED])
def test_graphs_are_captured_while_everything_is_asked(
    way: str, start: Start, machine: Machine, report: Findings
) -> None:
    job = start("capturing", way=way, settings=SAMPLE_ALL)
    job.ready()

    asked = 0
    job.configure(**{"memory.history": "10000"})
    for read in READS:
        until(lambda: True)
        job.probe(*read)
        asked += 1
    hunt = job.probe("nan", "--hunt", "--seconds", 3)
    value = job.probe("eval", "sum(range(10))").stdout.strip()
    if machine.has_gpu:  # an eval that waits for the device, on a thread of its own, during captures
        for _ in range(5):
            job.probe("eval", "import torch; torch.ones(8, device='cuda').sum().item()")
    errors = job.query("SELECT source, message FROM probe.errors")
    final = job.end()

    report.seen("commands asked while graphs were captured", asked)
    report.check("exit code of a hunt there", hunt.returncode, "0 or 3", hunt.returncode in (0, 3))
    report.same("eval there", value, "45")
    report.check("graphs captured", final["graphs"], "more than 3", final["graphs"] > 3)
    report.same("replays that differ from eager steps", final["wrong"], 0)
    report.same("exit code of the job", job.wait(), 0)
    report.check("failures of the recorder", errors, "none", not errors)


def _free_mib(machine: Machine) -> float | None:
    """Return the free memory of the device as nvidia-smi tells it."""
    if not machine.has_gpu:
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return -float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None
