"""`probe … nan --hunt`: the first module, rank and direction, in a DDP job of two ranks."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from support.commands import probe
from support.waiting import until

from .conftest import Answer, Job, started

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

NET = "DistributedDataParallel.module"


def hunt(job: Job, fault: str) -> tuple[int, Answer]:
    """Start a hunt in the healthy job, plant the fault once every rank is watched, and return what the hunt says."""
    job.plant("none")
    hunting = job.start("nan", "--hunt", "--json", "--seconds", "150")
    assert hunting.stderr is not None
    told = []
    for line in hunting.stderr:
        told.append(line)
        if line.startswith("watching"):
            break
    job.plant(fault)
    out, err = hunting.communicate(timeout=200)
    assert out, "".join(told) + err
    return hunting.returncode, json.loads(out)


def test_nan_made_in_forward_names_rank_and_module(job: Job) -> None:
    code, answer = hunt(job, "forward")

    origin = answer["origin"]
    assert (code, answer["rank"], origin["kind"], origin["modules"]) == (1, 1, "forward", [f"{NET}.blocks.2"]), answer
    assert (origin["value"], origin["came_in"], origin["own"]) == ("NaN", "finite", [])
    assert answer["sentence"].startswith("rank 1: ")
    assert f"{NET}.blocks.2 made NaN in forward in step" in answer["sentence"]
    assert "its input was finite" in answer["sentence"]


def test_nan_made_in_backward_names_rank_and_module(job: Job) -> None:
    code, answer = hunt(job, "backward")

    origin = answer["origin"]
    assert (code, answer["rank"], origin["kind"], origin["modules"]) == (1, 1, "backward", [f"{NET}.blocks.1"]), answer
    assert "in backward" in answer["sentence"]


def test_a_bad_batch_is_told_as_such(job: Job) -> None:
    code, answer = hunt(job, "data")

    assert (code, answer["rank"], answer["origin"]["kind"]) == (1, 1, "data"), answer
    assert answer["sentence"].startswith("rank 1: ")
    assert "the batch has NaN in step" in answer["sentence"]


def test_a_bad_parameter_is_named_with_its_module(job: Job) -> None:
    code, answer = hunt(job, "parameter")

    origin = answer["origin"]
    assert (code, answer["rank"], origin["modules"]) == (1, 1, [f"{NET}.blocks.1.inner"]), answer
    assert (origin["own"], origin["came_in"]) == (["weight"], "finite")


def test_a_bad_buffer_is_found_by_the_evaluation_that_uses_it(job: Job) -> None:
    code, answer = hunt(job, "buffer")

    origin = answer["origin"]
    assert (code, answer["rank"], origin["own"], origin["has_grad"]) == (1, 1, ["running_var"], False), answer


def test_an_infinite_value_in_a_gradient_is_found_at_the_end_of_its_step(job: Job) -> None:
    code, answer = hunt(job, "gradient")

    origin = answer["origin"]
    assert (code, answer["rank"], origin["kind"]) == (1, 1, "gradient"), answer
    assert origin["gradients"] == [f"{NET}.head.weight"]


def test_a_healthy_job_has_nothing_and_its_hooks_are_removed(job: Job) -> None:
    job.plant("none")

    code, answer = job.ask("nan", "--hunt", "--steps", "20")

    assert (code, answer["origin"], answer["notes"]) == (0, None, []), answer
    assert answer["sentence"].startswith("nothing found: 20 steps on 2 ranks (0-1), ")
    until(lambda: hooks(job) == "0", 30, lambda: hooks(job))  # a sampled step has hooks of its own


def test_a_hunt_that_is_killed_leaves_nothing(job: Job) -> None:
    job.plant("none")
    hunting = job.start("nan", "--hunt")
    assert hunting.stderr is not None
    until(lambda: hunting.stderr.readline().startswith("watching"))  # type: ignore[union-attr]  # seen above

    meanwhile, in_child = hooks(job), hooks(job, FORKED)
    hunting.send_signal(signal.SIGKILL)
    hunting.communicate(timeout=60)

    assert (meanwhile, in_child) == ("2", "0")
    until(lambda: hooks(job) == "0", 30, lambda: hooks(job))


HOOKS = "import torch.nn.modules.module as m; len(m._global_forward_hooks) + len(m._global_forward_pre_hooks)"
FORKED = f"""
import os
child = os.fork()
if not child:
    {HOOKS.replace("; ", "; os._exit(")})
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def hooks(job: Job, code: str = HOOKS) -> str:
    """Return how many hooks on all modules the second rank has between two steps, or a child that it forks there."""
    done = probe(str(job.ranks[1].pid), "eval", "--at-step", code)
    return done.stdout.strip() + done.stderr.strip()


@pytest.mark.long
@pytest.mark.situation("a hunt for NaN", "losses and weights equal those of the twin, bit for bit")
def test_a_hunted_job_equals_its_twin(tmp_path: Path) -> None:
    with started(tmp_path / "hunted") as job:
        job.plant("none")
        answers = [job.ask("nan", "--hunt", "--seconds", "1"), job.ask("nan"), job.ask("nan", "--hunt", "--steps", "9")]
    digests = [(tmp_path / f"hunted/digest-{rank}").read_text() for rank in range(2)]
    with started(tmp_path / "twin", digests[0].split()[0]) as job:
        for rank in job.ranks:
            rank.wait(120)

    assert [(code, answer["sentence"][:13]) for code, answer in answers] == [(0, "nothing found")] * 3
    assert [(tmp_path / f"twin/digest-{rank}").read_text() for rank in range(2)] == digests
