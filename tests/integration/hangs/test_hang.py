"""`probe … hang` on jobs that hang, and on one that goes on until a rank of it is stopped and killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support.commands import Probe, probe_in
from support.waiting import stop, until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

Answer = dict[str, Any]  # JSON


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return probe_in(tmp_path)


def pids(job: Path) -> list[int]:
    return [int(path.read_text()) for path in sorted(job.glob("?.pid"))]


def named(these: Sequence[object]) -> list[str]:
    return [word for one in these for word in ("-t", str(one))]


class Hang:
    """`probe … hang` on one job, asked until it says what is waited for."""

    def __init__(self, probe: Probe, these: Sequence[object]) -> None:
        self.probe, self.these = probe, these
        self.code, self.answer, self.err = -1, {}, ""

    def until(self, is_meant: Callable[[Answer], bool], *options: str) -> Answer:
        def asked() -> bool:
            done = self.probe(*named(self.these), "hang", "--between", "0.5", "--format", "json", *options)
            self.code, self.err = done.returncode, done.stderr
            self.answer = json.loads(done.stdout) if done.stdout else {}
            return bool(self.answer) and is_meant(self.answer["verdict"])

        until(asked, 120, lambda: f"{self.answer} {self.err}")
        verdict: Answer = self.answer["verdict"]
        return verdict


def hangs(verdict: Answer) -> bool:
    return bool(verdict["state"] == "hangs")


def test_the_rank_that_has_not_come_is_named_with_what_it_does(jobs: Path, probe: Probe) -> None:
    hang = Hang(probe, pids(jobs / "absent"))

    said = hang.until(hangs)

    assert (hang.code, said["ranks"], said["cause"]) == (1, [3], "absent")
    assert "rank 3 has not come to all_reduce 8 of group " in said["sentence"]
    assert "rank 3 sleeps in wait_for_ever (hanging_ranks.py:" in said["sentence"]
    assert 0 < said["aborts_in_s"] < 1800
    assert [row["doing"] for row in hang.answer["rows"]][3] == "sleeps"


@pytest.mark.long  # a minute, of which 40 s are the wait for certainty
def test_ranks_that_sent_to_each_other_before_the_recorder_came_are_named(jobs: Path, probe: Probe) -> None:
    hang = Hang(probe, pids(jobs / "sends"))

    said = hang.until(hangs)

    assert (hang.code, said["ranks"], said["cause"]) == (1, [1, 2], "cycle")
    assert "ranks 1-2 wait for each other: rank 1 is in send to rank 2; rank 2 is in send to" in said["sentence"]
    assert "2 ranks held up" in said["sentence"]


def test_a_rank_that_cannot_be_seen_is_told_and_never_counted_as_fine(jobs: Path, probe: Probe) -> None:
    hang = Hang(probe, pids(jobs / "absent")[:3])

    said = hang.until(lambda verdict: verdict["cause"] == "unseen")

    assert (hang.code, said["state"]) == (3, "unknown")
    assert "nothing is known of rank 3, for which" in said["sentence"]
    assert "nothing is known of rank 3" in hang.answer["notes"]


def test_a_stopped_process_without_recorder_is_the_one_rank_that_nobody_else_is(jobs: Path, probe: Probe) -> None:
    ranks = pids(jobs / "absent")
    assert probe(str(ranks[3]), "detach").returncode in (0, 4)  # nothing tells its rank: it was forked
    stop(ranks[3])
    try:
        hang = Hang(probe, ranks)
        said = hang.until(hangs)
    finally:
        os.kill(ranks[3], signal.SIGCONT)

    assert (hang.code, said["ranks"]) == (1, [3])
    assert f"resume it with: kill -CONT {ranks[3]}" in said["sentence"]
    assert any(f"pid {ranks[3]}, taken for the rank not seen" in note for note in hang.answer["notes"])


def test_stopped_processes_without_recorder_are_told_by_their_environment_alone(probe: Probe) -> None:
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    program = [sys.executable, "-c", "import time\nprint('ready', flush=True)\ntime.sleep(600)"]
    ranks = [
        subprocess.Popen(program, env={**os.environ, **shared, "RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            stop(process.pid)
        done = probe(*named([process.pid for process in ranks]), "hang", "--between", "0.5", "--format", "json")
    finally:
        for process in ranks:
            process.kill()
            process.communicate()

    rows = json.loads(done.stdout)["rows"]
    assert [(row["rank"], row["pid"], row["doing"]) for row in rows] == [
        (rank, process.pid, "is stopped by a signal") for rank, process in enumerate(ranks)
    ]


def test_without_a_single_rank_there_is_no_verdict(probe: Probe) -> None:
    done = probe(*named([4_194_302, 4_194_303]), "hang")

    assert (done.returncode, done.stdout) == (4, "")
    assert "none of 2 ranks could be looked at" in done.stderr


def test_another_operation_and_another_order_are_told_from_a_rank_that_is_late(jobs: Path, probe: Probe) -> None:
    operation = Hang(probe, pids(jobs / "operation")).until(hangs)
    order = Hang(probe, pids(jobs / "order")).until(hangs)

    assert (operation["ranks"], operation["cause"]) == ([2], "mismatch")
    assert "ranks 0-1,3 call all_reduce; rank 2 calls broadcast" in operation["sentence"]
    assert (order["ranks"], order["cause"]) == ([0, 1, 2, 3], "cycle")


def test_one_rank_too_few_at_the_start_is_told_with_the_place_where_the_others_wait(jobs: Path, probe: Probe) -> None:
    hang = Hang(probe, pids(jobs / "few"))

    said = hang.until(lambda verdict: verdict["cause"] == "init" and verdict["ranks"] == [3])

    assert (hang.code, said["state"]) == (3, "unknown")
    assert "rank 3 has not come to init_process_group, in which ranks 0-2 wait (store 127.0.0.1:" in said["sentence"]
    assert "world size 4" in said["sentence"]


@pytest.mark.long
def test_a_rank_that_is_stopped_goes_on_and_is_killed_is_told_each_time(jobs: Path, probe: Probe) -> None:
    ranks = pids(jobs / "trains")
    hang = Hang(probe, ranks)

    healthy = hang.until(lambda verdict: "the job has come from step" in verdict["sentence"])
    assert (hang.code, healthy["ranks"]) == (0, [])

    hang.until(lambda verdict: verdict["state"] == "no hang", "--extend-timeout", "3600")
    assert "group 0: timeout 3600 s for calls made from now on, 1800 s before (4 ranks (0-3))" in hang.answer["notes"]
    assert any("calls that already wait keep their timeout" in note for note in hang.answer["notes"])
    timeouts = "SELECT max(timeout) FROM torch.flight_recorder"
    until(lambda: "3600" in probe(str(ranks[0]), "query", timeouts).stdout)
    assert "extend-timeout" in probe(str(ranks[0]), "query", "SELECT action FROM probe.audit").stdout

    stop(ranks[1])
    stopped = hang.until(hangs)
    assert (hang.code, stopped["ranks"]) == (1, [1])
    assert f"resume it with: kill -CONT {ranks[1]}" in stopped["sentence"]

    os.kill(ranks[1], signal.SIGCONT)
    assert hang.until(lambda verdict: "the job has come from step" in verdict["sentence"])["ranks"] == []

    os.kill(ranks[2], signal.SIGKILL)
    died = hang.until(lambda verdict: verdict["state"] == "died")
    assert (hang.code, died["ranks"]) == (1, [2])
    assert "was killed by SIGKILL" in died["sentence"]


@pytest.mark.long
def test_of_a_rank_that_holds_its_gil_the_snapshot_of_its_stall_tells_how_far_it_has_come(
    jobs: Path, probe: Probe
) -> None:
    """It has called nothing since the attach: no row of a ring has its calls."""
    ranks = pids(jobs / "gil")
    assert probe(str(ranks[3]), "config", "stall.after=1").returncode == 0
    stalls = "SELECT count(*) AS stalls FROM python.stalls"
    until(lambda: probe(str(ranks[3]), "query", "--format", "csv", stalls).stdout.split()[-1:] == ["1"], 60)
    (jobs / "gil/keep").touch()
    hang = Hang(probe, ranks)

    said = hang.until(lambda verdict: hangs(verdict) and "GIL" in verdict["sentence"], "--patience", "0")

    assert (hang.code, said["ranks"], said["cause"]) == (1, [3], "absent")
    assert "rank 3 has not come to all_reduce 8 of group " in said["sentence"]
    assert "rank 3 keeps the GIL in native code in keep_the_gil (hanging_ranks.py:" in said["sentence"]
    assert hang.answer["rows"][3]["in_call"] is None


def test_a_job_that_is_killed_while_it_hangs_leaves_who_did_not_come(jobs: Path, probe: Probe) -> None:
    ranks = pids(jobs / "absent")
    hang = Hang(probe, ranks)
    for pid in ranks:
        assert probe(str(pid), "config", "stall.after=1").returncode == 0
    stalls = "SELECT count(*) AS stalls FROM python.stalls"
    until(lambda: "4" in probe(*named(ranks), "query", "--format", "csv", stalls).stdout.split(), 60)

    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    said = hang.until(lambda verdict: verdict["state"] == "died")

    assert (hang.code, said["ranks"], said["cause"]) == (1, [3], "absent")
    # The kernel may end two of them at one time.
    assert re.search("was the first to end: it was killed by SIGKILL|killed first, at .* too close", said["sentence"])
    assert "the job has died of a hang: rank 3 has not come to all_reduce 8 of group " in said["sentence"]
    assert [row["in_call"] for row in hang.answer["rows"]][3] is None

    by_one_pid = probe("-t", str(ranks[1]), "--all", "hang", "--format", "json")
    told = json.loads(by_one_pid.stdout)["verdict"]
    assert (by_one_pid.returncode, told["state"], told["ranks"]) == (1, "died", [3]), by_one_pid.stderr


@pytest.mark.long
def test_of_ranks_whose_calls_timed_out_the_one_that_did_not_come_is_to_blame(jobs: Path, probe: Probe) -> None:
    """It is known also when it has been ended as well, long before a standstill counts as a stall."""
    ranks = pids(jobs / "times_out")
    hang = Hang(probe, ranks)
    hang.until(lambda verdict: "the job has come from step" in verdict["sentence"])

    (jobs / "times_out/stop").touch()
    lives = hang.until(lambda verdict: hangs(verdict) and "was the first to end" in verdict["sentence"])

    assert (hang.code, lives["ranks"], lives["cause"]) == (1, [3], "absent")
    assert "; rank 3 sleeps in wait_for_ever (hanging_ranks.py:" in lives["sentence"]

    os.kill(ranks[3], signal.SIGKILL)
    died = hang.until(lambda verdict: verdict["state"] == "died")

    assert (hang.code, died["ranks"], died["cause"]) == (1, [3], "absent")
    assert "the job has died of a hang: rank 3 has not come to all_reduce " in died["sentence"]
    assert "Timed out waiting" in died["sentence"]
    (headline, *_) = json.loads(probe(*named(ranks), "diagnose", "--format", "json").stdout)["findings"]
    assert (headline["rule"], headline["ranks"], headline["sentence"]) == ("rank-died", [3], died["sentence"])
