"""A job whose steps stop leaves one row and one snapshot a stall, is named at work, and computes what its twin does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import Any

import pytest
from activate.conftest import PATH_ENTRY
from support.commands import ROOT, Probe, plain, probe_in
from support.forked import Forked
from support.waiting import until

from probe_agent.targets import Ring, Target, TargetDirectory, newest_step, read_stall_snapshot

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
PROGRAM = ROOT / "tests" / "targets" / "stalling.py"
#: Each stall that the job is taken through, and the functions of the program that it may be in.
PLACES = {
    "stuck": ["wait_for"],
    "evaluate": ["check"],
    "after_evaluate": ["wait_for"],
    "save": ["wait_for"],
    "compile": ["main", "wait_for"],
}
HELD_S = 1.4
#: Time for torch and Dynamo to be imported on a busy machine, twice.
START_S = 180.0
AFTER_S = 0.5
OFF = {"PROBE": "1", "PROBE_STALL_WATCH": "off", "PROBE_STALL_AFTER": str(AFTER_S), "PROBE_FLUSH_INTERVAL": "0.05"}
Row = dict[str, Any]


class Job:
    """One run of the program, planned, taken through its stalls one by one."""

    def __init__(self, folder: Path, probe: Probe) -> None:
        self.folder, self.probe = folder, probe
        self.process = start(folder, **OFF)
        self.twin = start(all_gone_on(folder / "twin"))
        #: The row and the snapshot of each stall.
        self.noticed: dict[str, Row] = {}
        self.snapshots: dict[str, Any] = {}
        self.rows_when_off: list[Row] = []
        self.listed = self.as_json = ""

    @property
    def target(self) -> Target:
        (found,) = (target for target in TargetDirectory().targets() if target.pid == self.process.pid)
        return found

    def rows(self, state: str = "") -> list[Row]:
        try:
            ring = Ring(self.target.ring_path("python.stalls"))
        except (FileNotFoundError, ValueError):
            return []
        rows = [row for number in range(ring.head) if (row := ring.row_number(number)) is not None]
        return [row for row in rows if state in ("", row["state"])]

    def is_quiet(self) -> bool:
        """Return whether no step has ended for much longer than a stall takes."""
        try:
            newest = newest_step(self.target)
        except ValueError:
            return False  # it is no target yet
        return newest is not None and time() - newest[1] > 4 * AFTER_S

    def switch_on(self) -> None:
        """Let the first stall pass unwatched, and watch from then on."""
        until(self.is_quiet, START_S, process=self.process)
        self.rows_when_off = self.rows()
        self.go_on("unwatched")
        assert self.probe(str(self.process.pid), "config", "stall.watch=on").returncode == 0

    def see(self, name: str) -> None:
        """Wait for the row of the stall, and let the job go on."""
        before = [row["began"] for row in self.noticed.values()]

        def new() -> list[Row]:
            found = [row for row in self.rows("stalled") if row["began"] not in before and not was_held(row)]
            return [row for row in found if str(row["place"]).partition(" ")[0] in PLACES[name]]

        self.noticed[name] = until(new, START_S, self.rows, self.process)[-1]
        self.snapshots[name] = read_stall_snapshot(self.target)
        if name == "stuck":
            self.listed = self.probe("list").stderr
            self.as_json = self.probe("list", "--format", "json").stdout
        self.go_on(name)
        began = self.noticed[name]["began"]
        until(lambda: began in [row["began"] for row in self.rows("over")], 60, self.rows)

    def go_on(self, name: str) -> None:
        (self.folder / name).touch()


def was_held(row: Row) -> bool:
    """Return whether it is the stall in which the program holds the GIL."""
    return bool(row["unseen"] >= HELD_S)


def all_gone_on(folder: Path) -> Path:
    """Make the folder of a job that waits for nothing."""
    folder.mkdir()
    for name in ("unwatched", *PLACES):
        (folder / name).touch()
    return folder


def start(folder: Path, **environ: str) -> subprocess.Popen[str]:
    return Forked(
        [PROGRAM, folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**plain(), "PYTHONPATH": PATH_ENTRY, **environ},
    )


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """The job after its stalls."""
    pytest.importorskip("torch")
    one = Job(tmp_path_factory.mktemp("stalls"), probe_in(tmp_path_factory.mktemp("state")))
    try:
        one.switch_on()
        for name in PLACES:
            one.see(name)
        yield one
    finally:
        for process in (one.process, one.twin):
            process.kill()
            process.communicate()


def test_a_switched_off_watch_leaves_nothing(job: Job) -> None:
    assert job.rows_when_off == []


def test_each_stall_has_one_row_and_one_when_it_is_over(job: Job) -> None:
    stalled = [row["began"] for row in job.rows("stalled")]
    over = [row["began"] for row in job.rows("over")]

    assert len(stalled) == len(set(stalled))
    assert over == stalled
    assert {row["began"] for row in job.noticed.values()} <= set(stalled)
    assert all(row["duration"] >= row["threshold"] >= AFTER_S for row in job.rows())


def test_a_stall_under_a_held_gil_is_told_afterwards(job: Job) -> None:
    held = [row for row in job.rows("stalled") if was_held(row)]

    assert held
    assert held[0]["unseen"] <= held[0]["duration"]
    assert job.noticed["stuck"]["began"] < held[0]["began"] < job.noticed["evaluate"]["began"]


def test_work_is_named_and_not_taken_for_a_hang(job: Job) -> None:
    named = {name: (row["activity"], row["is_work"]) for name, row in job.noticed.items()}

    assert named == {
        "stuck": ("python", False),
        "evaluate": ("evaluation", True),
        "after_evaluate": ("python", False),
        "save": ("save", True),
        "compile": ("compile", True),
    }
    assert str(job.noticed["evaluate"]["place"]).startswith("check (stalling.py:")


def test_work_that_ends_without_a_step_is_followed_by_a_stall_of_its_own(job: Job) -> None:
    (over,) = [row for row in job.rows("over") if row["began"] == job.noticed["evaluate"]["began"]]
    after = job.noticed["after_evaluate"]

    assert after["step"] == over["step"] == job.noticed["evaluate"]["step"]
    assert after["began"] - job.noticed["evaluate"]["began"] > AFTER_S * 1e6
    assert abs(after["began"] - over["ts"]) < 1000  # microseconds


def test_the_snapshot_has_stacks_and_the_newest_rows(job: Job) -> None:
    found = job.snapshots["stuck"]

    training = [frame["func"] for frame in found.rows("frames") if frame["number"] == 0]
    assert training[:3] == ["wait_for", "main", "<module>"]
    steps = [entry["row"]["step"] for entry in found.rows("rows") if entry["table"] == "python.steps"]
    assert steps[-1] == found.stall["step"] - 1
    assert {"rss", "host_available"} <= {row["name"] for row in found.rows("memory")}
    assert str(job.process.pid) in {str(row["tid"]) for row in found.rows("tasks")}


def test_list_names_the_stall(job: Job) -> None:
    (line,) = [line for line in job.listed.splitlines() if line.startswith(f"pid {job.process.pid}: ")]
    (told,) = [row for row in json.loads(job.as_json) if row["pid"] == job.process.pid]

    assert "no step for " in line
    assert "; stalled since " in line
    assert "at wait_for (stalling.py:" in line
    assert told["stall"].partition("; ")[2] == line.partition("; ")[2]


@pytest.mark.situation("a planned job that stalls, evaluates, saves and compiles", "its output equals that of its twin")
def test_the_job_computes_what_its_twin_does(job: Job) -> None:
    undisturbed = job.twin.communicate(timeout=120)

    result = job.process.communicate(timeout=120)

    assert len(undisturbed[0].split()) == 3
    assert result == undisturbed
    assert (job.process.returncode, job.twin.returncode) == (0, 0)


def test_the_stalls_of_an_ended_job_can_be_queried(job: Job) -> None:
    job.process.wait(120)
    pid = str(job.process.pid)

    def ask(sql: str) -> list[Row]:
        answer: list[Row] = json.loads(job.probe(pid, "query", "--format", "json", sql).stdout)
        return answer

    rows = ask("SELECT DISTINCT activity FROM python.stalls")
    stacks = ask("SELECT func FROM python.stall_stacks WHERE is_training ORDER BY depth")
    sections = ask("SELECT content ->> 'name' AS name FROM python.stall_snapshot WHERE section = 'memory'")

    assert {row["activity"] for row in rows} >= {"python", "evaluation", "save", "compile"}
    assert stacks[-1] == {"func": "<module>"}
    assert {"name": "rss"} in sections
