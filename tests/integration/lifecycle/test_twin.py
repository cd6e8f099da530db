"""A job that is attached to, queried and detached from computes the same as its undisturbed twin, bit for bit."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port
from support.waiting import until

from .conftest import training, wait_until_ready

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

COMPILED = [pytest.param("inductor", marks=pytest.mark.long)] if shutil.which("g++") else []


def visit(probe: Any, pid: int) -> list[tuple[int, str]]:
    """Do everything that a user may do to a job without changing it; return the exit codes, with the output of those
    that are not 0."""
    commands = [
        ["inject"],
        ["backtrace"],
        ["config", "trace.every=1"],
        ["query", "SELECT COUNT(*) FROM python.steps"],
        ["eval", "print(len(optimizer.param_groups), model)"],
        ["config", "trace.every=0"],
        ["eval", "--at-step", "loss"],
        ["detach"],
    ]
    answers = [probe(pid, *command) for command in commands]
    return [(code, err if code else "") for code, _, err in answers]


@pytest.mark.situation("a job, eager and compiled", "losses and weights equal those of the twin, bit for bit")
@pytest.mark.parametrize("kind", ["eager", pytest.param("aot_eager", marks=pytest.mark.long), *COMPILED])
def test_a_job_equals_its_twin(kind: str, tmp_path: Path, probe: Any) -> None:
    with training(kind, tmp_path / "probed") as probed:
        wait_until_ready(probed)
        visits = [visit(probe, probed.pid) for _ in range(2 if kind == "eager" else 1)]
        result = probed.finish()
    with training(kind, tmp_path / "twin", result["steps"]) as twin:
        wait_until_ready(twin)
        undisturbed = twin.finish()

    assert visits == [[(0, "")] * 8] * len(visits)
    assert undisturbed["weights"] == result["weights"]
    assert (tmp_path / "twin/losses0").read_text() == (tmp_path / "probed/losses0").read_text()


@pytest.mark.situation(
    "DDP with gloo, each rank attached to", "losses and weights equal those of the twin, bit for bit"
)
def test_two_ranks_equal_their_twins(tmp_path: Path, probe: Any) -> None:
    def pair(folder: Path, steps: int, stack: ExitStack) -> list[Any]:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        started = [stack.enter_context(training("ddp", folder, steps, RANK=str(r), **shared)) for r in range(2)]
        for one in started:
            wait_until_ready(one)
        return started

    with ExitStack() as stack:
        probed = pair(tmp_path / "probed", 0, stack)
        visits = [visit(probe, one.pid) for one in probed]
        until(lambda: probed[0].num_steps > 50)
        results = [one.finish() for one in probed]
    with ExitStack() as stack:
        undisturbed = [one.finish() for one in pair(tmp_path / "twin", results[0]["steps"], stack)]

    assert visits == [[(0, "")] * 8] * 2
    assert [one["weights"] for one in undisturbed] == [one["weights"] for one in results]
    for rank in range(2):
        assert (tmp_path / f"twin/losses{rank}").read_text() == (tmp_path / f"probed/losses{rank}").read_text()
