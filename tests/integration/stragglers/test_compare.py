"""`probe compare` of a real job of four ranks: it names the slow one and its phase, or none."""

from __future__ import annotations

import json
import os
import re
import signal
from time import monotonic

import pytest
from support.waiting import stop

from probe_cli.cluster.hang.standstill import LONG_S

from .conftest import NUM_RANKS, NUM_STEPS, Job

#: The newest steps are left out where a rank's calls in them have no rows yet: C++ made them, and they come late.
FEWEST = 0.8

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


@pytest.mark.parametrize(
    ("what", "rank", "phase"),
    [
        ("data", 3, "data_wait"),
        pytest.param("forward", 0, "forward", marks=pytest.mark.long),
        pytest.param("checkpoint", 1, "other", marks=pytest.mark.long),
        pytest.param("backward", 2, "backward", marks=pytest.mark.long),
    ],
)
def test_the_slow_rank_its_phase_and_its_cost_are_named(job: Job, what: str, rank: int, phase: str) -> None:
    job.make(f"{what} {rank} 0.04")

    found = job.compare()
    verdict = found["verdict"]

    assert (verdict["state"], verdict["exit_code"]) == ("stands out", 5), verdict
    assert verdict["ranks"] == [rank]
    assert verdict["where"] == phase, verdict
    assert FEWEST * NUM_STEPS <= verdict["num_steps"] <= NUM_STEPS
    assert verdict["sentence"].startswith(f"rank {rank} holds the job up: ")
    # A busy machine delays the peers too, and less is lost to this rank; or it prolongs the sleep.
    assert 0.02 < verdict["cost"] < 0.08
    assert 0.05 < verdict["share_low"] <= verdict["share"] <= verdict["share_high"] < 1
    first, *others = found["rows"]
    assert (first["who"], first["phase"]) == (f"rank {rank}", phase)
    assert all(other["waited"] > 0.02 > first["waited"] for other in others)
    assert found["unanswered"] == []
    if what == "backward":
        by_rank = job.compare("--by", "collective")["rows"]
        assert (by_rank[0]["rank"], by_rank[0]["op"]) == (rank, "all_reduce")
    if what == "data":
        (row,) = (row for row in job.compare("--by", "phase")["rows"] if row["rank"] == rank)
        assert row["longer"] == phase


def test_the_line_is_named_while_it_is_watched_and_what_other_tables_tell_is_there(job: Job) -> None:
    job.make("checkpoint 1 0.04")

    verdict = job.compare(watch_s=2)["verdict"]

    assert verdict["ranks"] == [1]
    assert verdict["line"] is not None
    assert verdict["line"].startswith("Case.pause at straggling.py:"), verdict
    assert verdict["line"] in verdict["sentence"]
    for name in ("cpu_share", "run_delay"):
        mine, peers = verdict["beside"][name]
        assert 0 <= mine < 1.1, verdict
        assert 0 <= peers < 1.1, verdict


@pytest.mark.busy_machine("a rank that a busy machine keeps from the processor does hold the job up")
def test_no_rank_is_named_if_none_is_slow_and_the_answer_says_what_was_compared(job: Job) -> None:
    job.make("nobody")
    before = job.steps_done() - NUM_STEPS
    code, out, err, num_steps = 1, "", "", NUM_STEPS

    def has_data() -> bool:  # on a busy machine a rank writes later what it has called, and more steps are needed
        nonlocal code, out, err, num_steps
        num_steps = min(job.steps_done() - before, 200)
        code, out, err = job.probe("compare", "--steps", str(num_steps))
        return not out.startswith("not enough data")

    job.until(has_data, 60.0)

    sentence, _, heading, *_ = out.splitlines()
    # On a busy machine ranks wait for each other by turns, or one of them waits for a CPU.
    assert code in (0, 6), out + err
    assert sentence.startswith(("no rank holds the job up: ", "no rank holds the job up for long: ", "host "))
    compared = re.search(rf"{NUM_RANKS} ranks compared over (\d+) steps of ", sentence)
    assert compared is not None, sentence
    assert FEWEST * num_steps <= int(compared[1]) <= num_steps
    assert heading.split()[:7] == ["who", "ranks", "rank", "pid", "host", "cost", "share"]
    assert "clock of " in err
    assert "±" in err


def test_by_module_names_the_module_that_sleeps(job: Job) -> None:
    assert job.probe("config", "trace.every=2")[0] == 0
    job.make("forward 3 0.04")

    verdict = job.compare("--by", "module")["verdict"]
    job.probe("config", "trace.every=20")

    assert verdict["ranks"] == [3]
    assert verdict["where"] == "DistributedDataParallel.module.block forward"


def test_by_memory_no_rank_stands_out(job: Job) -> None:
    found = job.compare("--by", "memory")

    assert found["verdict"]["state"] == "nobody"
    assert {row["rank"] for row in found["rows"]} == {0, 1, 2, 3}


def test_by_env_shows_the_variables_of_rank_1_and_no_secret(job: Job) -> None:
    found = job.compare("--by", "env")

    differs = {(row["kind"], row["name"]): row for row in found["rows"] if row["ranks"] == "1"}
    assert (found["verdict"]["state"], found["verdict"]["exit_code"]) == ("stands out", 5)
    assert found["verdict"]["ranks"] == [1]
    assert differs["variable", "NCCL_DEBUG"]["value"] == "WARN"
    assert differs["variable", "UCX_HOME"]["value"] == "http://***@host/"
    assert "hidden" not in str(found)
    assert "NCCL_API_KEY" not in str(found)


def test_process_env_has_versions_settings_and_the_hash_of_the_script(job: Job) -> None:
    code, out, _ = job.probe("query", "SELECT kind, name, value, file FROM process.env", "--format", "jsonl")

    assert code == 0
    assert '"kind": "version", "name": "torch"' in out
    assert '"name": "torch.get_num_threads()", "value": "1"' in out
    assert '"kind": "probe", "name": "trace.every", "value": "20"' in out
    (line,) = {line.partition('"kind"')[2] for line in out.splitlines() if '"name": "__main__"' in line}
    assert "straggling.py" in line
    assert '"value": null' not in line


def test_a_rank_that_is_gone_costs_its_own_answer_and_the_exit_code(job: Job) -> None:
    job.make("forward 3 0.04")
    job.pids.append(2**22 - 3)

    code, out, err = job.probe("compare", "--steps", "40", "--watch", "0")
    job.pids.pop()

    assert code == 3
    assert "4 of 5 answered" in err
    assert "rank 3 holds the job up: " in out


@pytest.mark.long
def test_a_rank_that_is_stopped_hangs_the_job_and_is_named(job: Job) -> None:
    stop(job.pids[2])
    try:
        began = monotonic()
        job.until(lambda: monotonic() - began > LONG_S + 3, 60.0)
        # Longer where a busy machine has made single steps of this job long.
        job.until(lambda: job.probe("compare", "--format", "json")[0] == 7, 60.0)
        code, out, err = job.probe("compare", "--format", "json")
    finally:
        os.kill(job.pids[2], signal.SIGCONT)

    verdict = json.loads(out)["verdict"]
    assert (code, verdict["state"], verdict["ranks"]) == (7, "hangs", [2]), out + err
    assert verdict["sentence"].startswith(f"the job hangs: rank 2 (pid {job.pids[2]} on ")
    assert "is stopped by a signal" in verdict["sentence"]
    assert "rank 2 has not come to " in verdict["sentence"]
    steps = job.steps_done()
    job.until(lambda: job.steps_done() > steps, 60.0)


def test_one_rank_is_not_enough(job: Job) -> None:
    alone = Job.__new__(Job)
    alone.pids = job.pids[:1]

    code, out, err = alone.probe("compare")

    assert code == 1
    assert out == f"not enough data: it takes two ranks to compare, and pid {alone.pids[0]} was asked alone\n"
    assert f"try: all {NUM_RANKS} ranks of its job: probe -t {alone.pids[0]} --all compare" in err


def test_nothing_of_ours_failed(job: Job) -> None:
    _, out, _ = job.probe("query", "SELECT message FROM probe.errors", "--format", "jsonl")

    assert out == ""
