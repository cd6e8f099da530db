"""`probe compare` of a real job of four ranks: it names the slow one and its phase, or nobody."""

from __future__ import annotations

import pytest

from .conftest import NUM_RANKS, NUM_STEPS, Job

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


@pytest.mark.parametrize(
    ("what", "rank", "phase"),
    [("data", 3, "data_wait"), ("forward", 0, "forward"), ("checkpoint", 1, "other"), ("backward", 2, "backward")],
)
def test_the_slow_rank_and_its_phase_are_named(job: Job, what: str, rank: int, phase: str) -> None:
    job.make(f"{what} {rank} 0.04")

    found = job.compare()
    verdict = found["verdict"]

    assert verdict["state"] == "stands out", verdict
    assert verdict["ranks"] == [rank]
    # Where forward ends and other begins is known of sampled steps only.
    assert verdict["where"] in (phase, "forward or other" if phase in ("forward", "other") else phase)
    assert verdict["num_steps"] == NUM_STEPS
    assert verdict["sentence"].startswith(f"rank {rank} is slow: ")
    assert verdict["evidence"] == "collectives"
    assert verdict["others_wait"] > 0.02 > verdict["wait"]
    assert found["ranks"][0]["rank"] == rank
    assert found["unanswered"] == []
    if what == "backward":
        collective = job.compare("--by", "collective")["verdict"]
        assert (collective["ranks"], collective["where"]) == ([rank], "all_reduce of group 0")
    if what == "data":
        (row,) = (row for row in job.compare("--by", "phase")["ranks"] if row["rank"] == rank)
        assert row["longer"] == phase


def test_nobody_is_named_when_nobody_is_slow_and_it_says_what_was_compared(job: Job) -> None:
    job.make("nobody")

    code, out, err = job.probe("compare", "--steps", str(NUM_STEPS))

    sentence, _, heading, *_ = out.splitlines()
    assert code == 0, err
    assert sentence.startswith(f"no rank stands out: {NUM_RANKS} ranks compared over {NUM_STEPS} steps of ")
    assert heading.split() == ["rank", "host", "pid", "steps", "duration", "own", "wait", "behind", "often", "score"]
    assert "clock of " in err
    assert "give or take" in err


def test_by_module_names_the_module_that_sleeps(job: Job) -> None:
    assert job.probe("config", "trace.every=2")[0] == 0
    job.make("forward 3 0.04")

    verdict = job.compare("--by", "module")["verdict"]
    job.probe("config", "trace.every=20")

    assert verdict["ranks"] == [3]
    assert verdict["where"] == "DistributedDataParallel.module.block forward"


def test_by_memory_nobody_stands_out(job: Job) -> None:
    found = job.compare("--by", "memory")

    assert found["verdict"]["state"] == "nobody"
    assert {row["rank"] for row in found["ranks"]} == {0, 1, 2, 3}


def test_by_env_shows_the_variables_of_rank_1_and_no_secret(job: Job) -> None:
    found = job.compare("--by", "env")

    differs = {(row["kind"], row["name"]): row for row in found["ranks"] if row["ranks"] == "1"}
    assert found["verdict"]["state"] == "stands out"
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
    job.pids.append(2**22 - 3)

    code, out, err = job.probe("compare", "--steps", "20")
    job.pids.pop()

    assert code == 3
    assert "4 of 5 answered" in err
    assert "rank 3 is slow" in out  # of the test before


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
