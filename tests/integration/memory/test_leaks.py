"""`probe PID memory --leaks`: the planted lines are named, nothing of the tracing stays, and the job's numbers stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import environment, plain, probe
from support.targets import target
from support.waiting import until

from .conftest import Job

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

PROGRAM = Path(target("leaking.py")[0])


def line_of(text: str) -> int:
    """Return the number of the program's line that has a text."""
    return next(number for number, line in enumerate(PROGRAM.read_text().splitlines(), start=1) if text in line)


def leaks(pid: int, *options: str) -> dict[str, Any]:
    done = probe(str(pid), "memory", "--leaks", *options, "--format", "json")
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["leaks"][0]
    return {**found, "exit_code": done.returncode, "stderr": done.stderr}


def is_tracing(pid: int) -> bool:
    done = probe(str(pid), "eval", "__import__('_tracemalloc').is_tracing()")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "True"


def grown(found: dict[str, Any], kind: str) -> dict[int, dict[str, Any]]:
    return {one["lineno"]: one for one in found["lines"] if one["grows"] and one["kind"] == kind}


@pytest.fixture(scope="module")
def leaking(jobs: dict[str, Job]) -> dict[str, Any]:
    return leaks(jobs["leaking"].pid, "--steps", "30")


def test_tensors_that_are_kept_with_their_graph_are_found_with_their_holder(leaking: dict[str, Any]) -> None:
    loss = line_of("# leak with its graph")

    kept = grown(leaking, "tensor")[loss]

    assert leaking["exit_code"] == 1
    assert kept["graphs"] == kept["num"]
    assert kept["num"] == pytest.approx(leaking["steps"], abs=8)
    assert kept["holder"].startswith("list `history`, global of __main__")
    assert kept["source"] == "loss = (model(batch) ** 2).mean()  # leak with its graph"
    assert leaking["sentence"].startswith(f"leaking.py:{loss} keeps")


def test_the_steps_that_took_longer_for_it_are_marked(jobs: dict[str, Job], leaking: dict[str, Any]) -> None:
    sql = (
        "SELECT count(*) FILTER (traced) AS traced, max(step) FILTER (traced) - min(step) FILTER (traced) AS between,"
        " max(step) > max(step) FILTER (traced) AS ended FROM python.steps"
    )

    def marked() -> dict[str, Any]:
        (row,) = json.loads(probe(str(jobs["leaking"].pid), "query", sql, "--format", "json").stdout)
        return dict(row)

    until(lambda: marked()["ended"])
    found = marked()
    assert found["traced"] >= leaking["steps"]
    assert found["traced"] == found["between"] + 1


def test_activations_that_the_graph_keeps_are_counted_where_they_were_made(leaking: dict[str, Any]) -> None:
    forward = line_of("return self.outer(")

    kept = grown(leaking, "tensor")[forward]

    assert kept["mib"] / leaking["steps"] > 0.1, "two activations of 64 by 512"


def test_python_objects_that_are_kept_are_found(leaking: dict[str, Any]) -> None:
    kept = grown(leaking, "python")[line_of("# leak of objects")]

    assert kept["num"] > 30 * leaking["steps"]
    assert kept["holder"] is None


def test_the_cost_is_told_before_and_after(leaking: dict[str, Any]) -> None:
    assert "tracing for 30 steps" in leaking["stderr"]
    assert leaking["pause_s"] > 0
    assert any("the job stood still for" in note for note in leaking["notes"])


def test_a_worker_is_asked_by_its_own_pid(jobs: dict[str, Job]) -> None:
    sql = "SELECT worker_pid FROM python.workers"
    worker = json.loads(probe(str(jobs["leaking"].pid), "query", sql, "--format", "json").stdout)[0]["worker_pid"]

    found = leaks(worker, "--seconds", "5")

    kept = grown(found, "python")[line_of("# leak in the worker")]
    assert kept["mib"] > 1


def test_no_line_is_named_in_a_job_that_gives_everything_back(jobs: dict[str, Job]) -> None:
    found = leaks(jobs["healthy"].pid, "--steps", "75")

    assert [one for one in found["lines"] if one["grows"]] == []
    assert found["exit_code"] == 0
    assert found["sentence"].startswith("no line keeps more and more memory over")


def test_tracing_ends_with_a_command_that_is_killed(jobs: dict[str, Job]) -> None:
    pid = jobs["healthy"].pid
    command = ["probe", str(pid), "memory", "--leaks", "--seconds", "200"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()) as running:
        assert running.stderr is not None
        assert b"tracing for" in running.stderr.readline()
        until(lambda: is_tracing(pid))
        busy = probe(str(pid), "memory", "--leaks", "--seconds", "1")
        running.send_signal(signal.SIGKILL)

    until(lambda: not is_tracing(pid))
    assert "already traced" in busy.stderr


def test_a_loader_worker_that_starts_in_the_window_does_not_trace(tmp_path: Path) -> None:
    """It inherits the parent's tracing, and nobody would ever end it there."""
    script = """
import _tracemalloc, os, sys, time
from probe_agent.recorder.operations.leaks import _tracing
with _tracing([]):
    assert _tracemalloc.is_tracing()
    if not (child := os.fork()):
        os._exit(_tracemalloc.is_tracing())
    status = os.waitpid(child, 0)[1]
assert not _tracemalloc.is_tracing()
_tracemalloc.start()
with _tracing(notes := []):
    pass
assert _tracemalloc.is_tracing() and notes, "that of the job stays"
sys.exit(status)
"""

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_job_in_which_leaks_are_traced_equals_its_twin(tmp_path: Path) -> None:
    num_steps = 150

    def run(folder: Path) -> subprocess.Popen[bytes]:
        folder.mkdir()
        command = [sys.executable, *target("leaking.py", "healthy", folder, num_steps)]
        return subprocess.Popen(command, stdout=(folder / "output").open("wb"), env=plain())

    with run(tmp_path / "twin") as twin, run(tmp_path / "probed") as probed:
        until(lambda: (tmp_path / "probed/output").read_bytes() == b"ready\n", 90, process=probed)
        found = leaks(probed.pid, "--steps", "15")
        assert probed.poll() is None, "it was traced while it trained"
        assert probed.wait(120) == twin.wait(120) == 0

    assert found["steps"] >= 15
    losses = [(tmp_path / name / "losses").read_text() for name in ("twin", "probed")]
    assert losses[0] == losses[1]
    assert losses[0].count("\n") == num_steps


def test_the_options_of_a_window_need_leaks() -> None:
    done = probe(str(os.getpid()), "memory", "--steps", "10")

    assert done.returncode == 2
    assert "try: add --leaks" in done.stderr


def test_a_snapshot_of_a_job_without_a_gpu_is_refused(jobs: dict[str, Job], tmp_path: Path) -> None:
    done = probe(str(jobs["healthy"].pid), "memory", "--snapshot", str(tmp_path / "snapshot.pickle"))

    assert done.returncode != 0
    assert "uses no CUDA device" in done.stderr
    assert "try: " in done.stderr
    assert not (tmp_path / "snapshot.pickle").exists()
