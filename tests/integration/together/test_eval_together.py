"""`eval --all --at-step`: on every rank after the same step, or on none."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest
from support.commands import ROOT, Probe, environment

from .conftest import Job, training

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

SUM = """
import torch, torch.distributed as dist
if dist.is_initialized():
    tensor = torch.tensor([trainer.current_step])
    dist.all_reduce(tensor)
    print(f'sum of steps over all ranks: {tensor.item()}')"""
MARK = "trainer.mark = trainer.current_step"
HAS_MARK = "print(hasattr(trainer, 'mark'))"


def next_step(job: Job, probe: Probe) -> int:
    """Return the earliest step that all could agree on now."""
    refused = probe(*job.targets, "--all", "eval", "--at-step", "0", "1")
    assert refused.returncode == 1
    assert "step 0 has passed" in refused.stderr
    return int(re.findall(r"use step (\d+) or a later one", refused.stderr)[0])


def start(job: Job, probe: Probe, num_steps: int, tmp_path: Path) -> subprocess.Popen[str]:
    """Start a `probe` that waits for a step far ahead, with the code held by all ranks."""
    step = next_step(job, probe) + num_steps
    waiting = under_way(job, str(step), MARK, tmp_path)
    assert waiting.stderr is not None
    assert waiting.stderr.readline().startswith(f"waiting for step {step}")
    return waiting


def under_way(job: Job, step: str, code: str, tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["probe", *job.targets, "--all", "eval", "--at-step", step, code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(XDG_STATE_HOME=str(tmp_path)),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def nobody_has_a_mark(job: Job, probe: Probe) -> bool:
    answer = probe(*job.targets, "--all", "eval", "--at-step", "next", HAS_MARK)
    return answer.stdout == "== ranks 0-1 ==\nFalse\n"


def test_a_collective_runs_on_every_rank_after_the_same_step(job: Job, probe: Probe) -> None:
    answer = probe(*job.targets, "--all", "eval", "--at-step", "next", SUM)
    steps = probe(*job.targets, "--all", "eval", "--at-step", "next", "trainer.current_step")

    assert answer.returncode == 0, answer.stderr
    found = re.fullmatch(r"== ranks 0-1 ==\nsum of steps over all ranks: (\d+)\n", answer.stdout)
    assert found
    assert int(found[1]) % 2 == 0
    assert re.search(r"agreed: the code runs on 2 ranks \(0-1\) when step \d+ has ended", answer.stderr)
    assert re.fullmatch(r"== ranks 0-1 ==\n\d+\n", steps.stdout)  # equal, though their recorders count otherwise
    assert job.goes_on()


def test_different_output_is_shown_by_rank_and_an_exception_is_an_error(job: Job, probe: Probe) -> None:
    code = "import os\nrank = int(os.environ['RANK'])\nprint('rank', rank)\nif rank == 1: raise ValueError('no')"

    answer = probe(*job.targets, "--all", "eval", "--at-step", "next", code)

    assert answer.returncode == 1
    assert answer.stdout == "== rank 0 ==\nrank 0\n\n== rank 1 ==\nrank 1\n"
    assert answer.stderr.count("ValueError: no") == 1
    assert job.goes_on()


def test_a_named_step_is_taken_as_it_is(job: Job, probe: Probe) -> None:
    step = next_step(job, probe) + 60

    answer = probe(*job.targets, "--all", "eval", "--at-step", str(step), "trainer.current_step")

    assert answer.returncode == 0, answer.stderr
    assert f"when step {step} has ended" in answer.stderr
    assert answer.stdout.startswith("== ranks 0-1 ==\n")


def test_code_that_does_not_compile_runs_nowhere(job: Job, probe: Probe) -> None:
    answer = probe(*job.targets, "--all", "eval", "--at-step", "next", f"{MARK}\nif")

    assert (answer.returncode, answer.stdout) == (1, "")
    assert "the code ran nowhere: 2 ranks (0-1) could not compile it" in answer.stderr
    assert "SyntaxError" in answer.stderr


def test_without_all_ranks_it_runs_nowhere(job: Job, probe: Probe) -> None:
    one = probe("-t", job.endpoints[0], "--all", "eval", "--at-step", "next", MARK)
    dead = probe(*job.targets, "-t", "127.0.0.1:1", "--all", "eval", "--at-step", "next", MARK)

    assert (one.returncode, one.stdout) == (3, "")
    assert "1 of 2 answered; not: rank 1" in one.stderr
    assert "the code ran nowhere" in one.stderr
    assert (dead.returncode, dead.stdout) == (3, "")
    assert "127.0.0.1:1 refused the connection" in dead.stderr
    assert "the code ran nowhere" in dead.stderr
    assert nobody_has_a_mark(job, probe)


def test_ctrl_c_before_all_have_agreed_cancels_it_everywhere(job: Job, probe: Probe, tmp_path: Path) -> None:
    waiting = start(job, probe, 2_000, tmp_path)
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=60)

    assert waiting.returncode == 130
    assert "agreed" not in said
    assert nobody_has_a_mark(job, probe)
    assert job.goes_on()


def test_after_the_agreement_it_runs_even_if_a_client_leaves(job: Job, probe: Probe, tmp_path: Path) -> None:
    leaving = under_way(job, "next", "import time\ntime.sleep(0.5)\ntrainer.ran = True", tmp_path)
    assert leaving.stderr is not None
    assert leaving.stderr.readline().startswith("agreed")
    leaving.send_signal(signal.SIGINT)
    _, said = leaving.communicate(timeout=60)
    job.goes_on()

    answer = probe(*job.targets, "--all", "eval", "--at-step", "next", "trainer.ran")

    assert leaving.returncode == 130
    assert "too late to cancel: the code runs on every rank" in said
    assert answer.stdout == "== ranks 0-1 ==\nTrue\n"


def test_a_host_server_that_dies_meanwhile_makes_it_run_nowhere(job: Job, probe: Probe, tmp_path: Path) -> None:
    waiting = start(job, probe, 2_000, tmp_path)
    job.servers[1].kill()
    _, said = waiting.communicate(timeout=60)
    job.serve(1)

    assert waiting.returncode == 3
    assert "the code ran nowhere: rank 1 cannot take part" in said
    assert nobody_has_a_mark(job, probe)


def test_a_rank_that_is_detached_meanwhile_makes_it_run_nowhere(job: Job, probe: Probe, tmp_path: Path) -> None:
    waiting = start(job, probe, 2_000, tmp_path)
    assert probe("-t", f"{job.endpoints[1]}/1", "detach").returncode == 0
    _, said = waiting.communicate(timeout=60)
    left = probe("-t", f"{job.endpoints[0]}/0", "eval", "--at-step", HAS_MARK)

    assert waiting.returncode in (1, 3)
    assert "the code ran nowhere" in said
    assert left.stdout == "False\n"
    assert job.goes_on()


def test_a_job_that_all_this_was_done_to_equals_its_twin(job: Job, tmp_path_factory: pytest.TempPathFactory) -> None:
    job.end()
    losses = [job.losses(rank) for rank in (0, 1)]

    with training(tmp_path_factory.mktemp("twin"), 2, 0, "sgd", len(losses[0])) as twin:
        twin.process.wait(90)

    assert len(losses[0]) > 100
    assert [twin.losses(rank) for rank in (0, 1)] == losses
