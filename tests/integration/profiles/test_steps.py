"""`probe … profile --steps`: exactly the requested steps, whatever comes in between, without effect on the job's
results."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from support.waiting import until

from .conftest import Start, Training

pytestmark = pytest.mark.torch
LAYERS = 4
STEP = "Optimizer.step#SGD.step"


def wait_until_off(training: Training) -> None:
    until(lambda: training.tell("profiled?") == "False")


def test_three_steps_are_three_steps(training: Training, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"

    rows = training.rows("profile", "--steps", "3", "--out", str(trace))

    calls = {row["name"]: row["calls"] for row in rows}
    assert calls[STEP] == 3
    assert calls["aten::linear"] == 3 * LAYERS
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event.get("name") == STEP for event in events) == 3
    assert sum(event.get("name") == "aten::linear" for event in events) == 3 * LAYERS
    kept = training.rows("query", f"SELECT steps, calls FROM python.profile_ops WHERE name = '{STEP}'")
    assert {"steps": 3, "calls": 3} in kept
    folder = next(Path("/dev/shm").glob(f"probe-*/{training.pid}-*"))
    assert not [path for path in folder.iterdir() if path.name.startswith("trace")]
    assert list(tmp_path.iterdir()) == [trace]
    assert training.tell("profiled?") == "False"


def test_shapes_tell_calls_apart(training: Training) -> None:
    rows = training.rows("profile", "--steps", "1", "--shapes")

    shapes = {row["input_shapes"] for row in rows if row["name"] == "aten::addmm"}
    assert shapes == {"[[16], [8, 16], [16, 16], [], []]"}


@pytest.mark.parametrize("command", ["own", "warm"])
@pytest.mark.situation("the job's own torch profiler is on, or warms up", "profile is refused, and says so")
def test_the_jobs_own_profiler_is_left_alone(training: Training, command: str) -> None:
    training.tell(command)
    try:
        refused = training.probe("profile", code=None)
    finally:
        training.tell("off")

    assert refused.returncode != 0
    assert "the job's own torch profiler is on, or warming up" in refused.stderr
    training.probe("profile", "--steps", "1")


@pytest.mark.situation("the job starts its own torch profiler while we profile", "ours ends first, and says so")
def test_a_profiler_that_the_job_starts_meanwhile_gets_its_steps(training: Training) -> None:
    training.tell("when-profiled own")

    cut = training.probe("profile", "--steps", "50", code=None)

    assert training.hear() == "own 2"
    assert cut.returncode != 0
    assert "the job has started its own torch profiler" in cut.stderr
    training.probe("profile", "--steps", "1")


@pytest.mark.situation("the job forks while we profile", "the profile ends; the child has none")
def test_a_child_has_no_profiler(training: Training) -> None:
    training.tell("when-profiled fork")

    cut = training.probe("profile", "--steps", "50", code=None)

    assert training.hear() == "forked 0"
    assert "has forked a process" in cut.stderr
    training.probe("profile", "--steps", "1")


@pytest.mark.situation("no step ends while we profile", "profile gives up; the profiler stops when the step ends")
def test_without_a_step_the_profile_times_out(training: Training) -> None:
    training.tell("when-profiled hold")

    late = training.start_probe("profile", "--timeout", "1.5")
    assert training.hear() == "holding"
    time.sleep(2)
    training.send("go")
    _, said = late.communicate(timeout=60)

    assert late.returncode != 0
    assert "of 3 steps ended within 1.5 s" in said
    wait_until_off(training)


def test_ctrl_c_stops_the_profiler(training: Training) -> None:
    training.tell("when-profiled hold")
    asking = training.start_probe("profile", "--steps", "100")
    assert training.hear() == "holding"

    asking.send_signal(signal.SIGINT)
    assert asking.wait(60) == 130
    training.send("go")

    wait_until_off(training)
    asking.communicate()


@pytest.mark.situation("a detach while we profile", "the profiler is off afterwards, and nothing is patched")
def test_detach_stops_the_profiler(start: Start) -> None:
    training = start()
    training.probe("inject")
    training.tell("when-profiled slow")
    asking = training.start_probe("profile", "--steps", "100")
    assert training.hear() == "slow"

    training.probe("detach")
    _, said = asking.communicate(timeout=60)

    assert asking.returncode != 0, said
    assert training.tell("profiled?") == "False"
    training.send("end")
    assert "Error" not in training.end()


@pytest.mark.situation("the process ends while we profile", "it ends as it would have, with its exit code")
def test_a_process_that_is_profiled_can_end(start: Start) -> None:
    training = start()
    training.probe("inject")
    training.tell("when-profiled end")

    cut = training.probe("profile", "--steps", "100", code=None)

    assert cut.returncode != 0
    assert training.end() == ""


def test_profiles_and_watches_leave_the_losses_as_they_are(start: Start) -> None:
    asked = start()
    asked.probe("profile", "--steps", "5", "--shapes")
    asked.probe("watch-var", "loss.item()", "trainer.network", "--every", "3", "--count", "20")
    asked.probe("profile", "--steps", "5")

    seen = asked.tell("digest")
    asked.send("end")
    assert asked.end() == ""
    assert start("--steps", seen.split()[0]).hear() == seen


@pytest.mark.situation(
    "the step under way is asked for, and a detach meanwhile", "losses bit-identical; nothing is left"
)
def test_the_step_under_way_is_told_and_stays_as_it_is(start: Start) -> None:
    asked, sql = start(), "SELECT number, age FROM python.current_step"

    seen = [row for _ in range(5) for row in asked.rows("query", sql)]
    asking = asked.start_probe("query", sql)
    asked.probe("detach")
    asking.communicate(timeout=60)

    numbers = [row["number"] for row in seen]
    assert len(set(numbers)) == 5
    assert numbers == sorted(numbers)
    assert all(0 <= row["age"] < 10 for row in seen)
    told = asked.tell("digest")
    asked.send("end")
    assert asked.end() == ""
    assert start("--steps", told.split()[0]).hear() == told
