"""A bare PID: no server runs, and the first command attaches to the process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.commands import Probe, environment

from probe_agent.inject import read_stacks

LOOP = """
import time
def rest():
    time.sleep(0.01)
print("ready", flush=True)
while True:
    rest()
"""


@contextmanager
def process(*arguments: str, **variables: str) -> Iterator[int]:
    """A Python process in a loop, ready."""
    with subprocess.Popen(
        [sys.executable, "-c", LOOP, *arguments], stdout=subprocess.PIPE, text=True, env=environment(**variables)
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield running.pid
        finally:
            running.kill()


@pytest.fixture
def pid() -> Iterator[str]:
    """A process without our agent."""
    with process() as number:
        yield str(number)


def test_the_first_question_attaches_and_says_so(pid: str, probe: Probe) -> None:
    first = probe(pid, "backtrace", "--json")
    second = probe(pid, "backtrace", "--json")

    assert first.returncode == 0, first.stderr
    assert f"attached to {pid} in" in first.stderr
    assert "attached" not in second.stderr
    assert "<module>" in [frame["func"] for frame in json.loads(second.stdout)["threads"][0]["frames"]]


def test_no_inject_leaves_the_process_alone(pid: str, probe: Probe) -> None:
    refused = probe("--no-inject", pid, "eval", "1")
    shown = probe("--no-inject", pid, "backtrace", "--json")
    listed = probe("list", "--format", "jsonl")

    assert refused.returncode == 4
    assert "--no-inject" in refused.stderr
    assert json.loads(shown.stdout)["source"] == "outside"
    states = {record["pid"]: record["state"] for record in map(json.loads, listed.stdout.splitlines())}
    assert states[int(pid)] == "no agent"


def test_doctor_says_that_nothing_stands_in_the_way(pid: str, probe: Probe) -> None:
    done = probe("doctor", pid, "--format", "json")

    assert done.returncode == 0, done.stdout
    assert {record["check"] for record in json.loads(done.stdout)}


def test_a_process_that_is_not_there_is_no_answer(probe: Probe) -> None:
    done = probe("4194303", "query", "SELECT 1")

    assert done.returncode == 4
    assert "4194303" in done.stderr


def test_inject_twice_and_detach_twice_are_no_accident(pid: str, probe: Probe) -> None:
    said = [probe(pid, verb) for verb in ("inject", "inject", "detach", "detach")]

    assert [done.returncode for done in said] == [0, 0, 0, 4]
    assert "attached already" in said[1].stderr
    assert f"detached from {pid}" in said[2].stderr


def test_several_targets_without_a_name_are_listed(probe: Probe) -> None:
    with process("one") as one, process("two") as two:
        for number in (one, two):
            probe(str(number), "inject")
        done = probe("backtrace")

    assert done.returncode == 2
    assert str(one) in done.stderr
    assert str(two) in done.stderr


def test_all_formats_come_from_a_real_target(pid: str, probe: Probe) -> None:
    sql = "SELECT func, depth, 'nan'::DOUBLE AS nothing FROM python.backtrace ORDER BY depth"

    outputs = {name: probe(pid, "query", sql, "--format", name) for name in ("table", "json", "jsonl", "csv")}

    assert {done.returncode for done in outputs.values()} == {0}
    assert json.loads(outputs["json"].stdout)[0]["nothing"] == "NaN"
    assert outputs["csv"].stdout.splitlines()[0] == "func,depth,nothing"


@pytest.mark.parametrize(
    ("question", "code"),
    [
        (("query", "SELECT * FROM python.backtrac"), 1),
        (("query", "SELECT count(*) FROM range(100000000000)", "--timeout", "0.3"), 1),
        (("eval", "1 / 0"), 1),
        (("eval", "while True: pass", "--timeout", "0.3"), 1),
        (("eval", "40 + 2"), 0),
        (("config", "trace.every=1"), 0),
        (("config", "trace.evry=1"), 2),
    ],
)
def test_exit_codes_say_what_went_wrong(pid: str, probe: Probe, question: tuple[str, ...], code: int) -> None:
    done = probe(pid, *question)

    assert done.returncode == code, done.stderr
    assert "probe_cli" not in done.stderr  # no traceback of ours


def test_list_shows_the_living_and_the_dead_on_request(probe: Probe) -> None:
    with process("lives") as living:
        with process("dies") as dead:
            for number in (living, dead):
                probe(str(number), "inject")
            (folder,) = Path("/dev/shm").glob(f"probe-*/{dead}-*")
        plain, all_ = probe("list"), probe("list", "--dead", "--format", "jsonl")
        of_folder = probe(str(folder), "list", "--format", "json")

    def numbers(lines: str) -> list[str]:
        return [line.split()[0] for line in lines.splitlines()]

    assert str(living) in numbers(plain.stdout)
    assert str(dead) not in numbers(plain.stdout)
    assert "list them with: probe list --dead" in plain.stderr
    assert {living: "alive", dead: "gone"} == {
        row["pid"]: "gone" if row["state"] == "gone" else "alive"
        for row in map(json.loads, all_.stdout.splitlines())
        if row["pid"] in (living, dead)
    }
    assert [row["pid"] for row in json.loads(of_folder.stdout)] == [dead], "nobody else is there"
    row = next(line for line in plain.stdout.splitlines() if line.split()[0] == str(living))
    assert "none yet" in row


def test_compare_of_a_single_target_says_what_it_needs(pid: str, probe: Probe) -> None:
    done = probe(pid, "compare")

    assert done.returncode == 1
    assert done.stdout == f"not enough data: it takes two ranks to compare, and pid {pid} was asked alone\n"
    assert f"name another target beside it: probe -t {pid} -t … compare" in done.stderr
    assert f"probe {pid} query" in done.stderr


def test_our_threads_are_marked_in_stacks_from_inside_and_outside(pid: str, probe: Probe) -> None:
    shown = probe(pid, "backtrace", "--all").stdout
    rows = json.loads(probe(pid, "query", "SELECT DISTINCT thread FROM python.stacks", "--format", "json").stdout)
    outside = {thread.thread: thread.is_probe for thread in read_stacks(int(pid))}

    headings = [line for line in shown.splitlines() if line.startswith("thread ")]
    assert headings[0].startswith(f"thread MainThread (main, tid {pid}), ")
    assert len(headings) > 1
    assert all(line.startswith("thread probe (Probe's own, tid ") for line in headings[1:]), headings
    assert {row["thread"] for row in rows} == {"MainThread", "probe"}
    assert outside == {"MainThread": False, "probe": True}


def test_a_detach_says_that_the_rings_are_gone_or_keeps_them(pid: str, probe: Probe) -> None:
    count = "SELECT count(*) AS rows FROM process.samples"

    def rows(endpoint: str) -> int:
        return int(json.loads(probe(endpoint, "query", count, "--format", "json").stdout)[0]["rows"])

    def folders() -> list[str]:
        return sorted(map(str, Path("/dev/shm").glob(f"probe-*/{pid}-*")))

    while not (recorded := rows(pid)):
        pass
    kept = probe(pid, "detach", "--keep")
    (folder,) = folders()
    again = probe(pid, "inject")
    listed = [json.loads(line) for line in probe("list", "--dead", "--format", "jsonl").stdout.splitlines()]
    gone = probe(pid, "detach")

    assert f"its rings are kept: probe {folder} tables" in kept.stderr
    assert rows(folder) >= recorded
    assert not (Path(folder) / "control.sock").exists()
    assert again.returncode == 0, again.stderr
    assert [row["state"] == "gone" for row in listed if row["pid"] == int(pid)] == [False, True]
    assert "its rings are removed (to keep them: probe PID detach --keep)" in gone.stderr
    assert folders() == [folder]
    shutil.rmtree(folder)


def test_inject_attaches_to_all_ranks_of_a_job_if_it_is_told_so(probe: Probe) -> None:
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29520"}
    with process(RANK="0", **job) as first, process(RANK="1", **job) as second, process() as stranger:
        done = probe("-t", str(first), "--all", "inject")

        attached = {pid for pid in (first, second, stranger) if f"attached to {pid} in" in done.stderr}
        again = probe("-t", str(second), "inject")

    assert done.returncode == 0
    assert attached == {first, second}
    assert "was attached already" in again.stderr
