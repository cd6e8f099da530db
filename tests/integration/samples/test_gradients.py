"""Whoever asks for gradients leaves a job alive that clears them as often as it can.

Before they were read between steps alone, such a job died of SIGSEGV: torch gives the GIL away while it frees a
gradient, before it clears the parameter's slot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import environment, probe
from support.targets import Ranks, forked, target
from support.waiting import until

pytestmark = pytest.mark.torch
HAS_ALL = "SELECT bool_and(has_gradient) AS all_have, count(*) AS num FROM torch.parameters"
MEMORY = (
    "SELECT sum(memory) FILTER (kind = 'parameters') AS parameters,"
    " sum(memory) FILTER (kind = 'gradients') AS gradients FROM torch.tensors"
)
NORMS = "[round(p.grad.norm().item(), 9) >= 0 for p in model.parameters()]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def job(folder: Path) -> Iterator[Ranks]:
    with forked(target("clears_gradients.py", folder), folder, environment(OMP_NUM_THREADS="1")) as job:
        pid = str(job.processes[0].pid)
        until(lambda: probe(pid, "query", "SELECT 1 FROM python.steps LIMIT 1").returncode == 0)
        yield job
    assert int((folder / "steps").read_text()) > 100


def test_a_job_whose_gradients_are_asked_for_goes_on(job: Ranks) -> None:
    pid = str(job.processes[0].pid)
    for _ in range(5):
        [held] = json.loads(probe(pid, "query", "--format", "json", HAS_ALL).stdout)
        [memory] = json.loads(probe(pid, "query", "--format", "json", MEMORY).stdout)

        assert held == {"all_have": True, "num": 8}
        assert memory["gradients"] == memory["parameters"] > 0
        assert job.poll() is None


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (NORMS, str([True] * 8)),
        ("model.zero_grad(set_to_none=True); print('cleared')", "cleared"),
        ("from torch.nn.utils import clip_grad_norm_; clip_grad_norm_(model.parameters(), 1e9) >= 0", "tensor(True)"),
    ],
)
def test_code_that_uses_gradients_waits_for_the_end_of_a_step(job: Ranks, code: str, says: str) -> None:
    pid = str(job.processes[0].pid)
    for _ in range(5):
        done = probe(pid, "eval", code)

        assert done.stdout.strip() == says, done.stderr
        assert "this code uses gradients: it runs on the training thread when the step has ended" in done.stderr
    assert probe(pid, "eval", "len(list(model.parameters()))").stderr.count("uses gradients") == 0
    assert job.poll() is None


def test_gradients_of_a_job_that_sleeps_are_read_without_a_step(job: Ranks, folder: Path) -> None:
    pid = str(job.processes[0].pid)
    (folder / "pause").touch()
    try:
        [row] = json.loads(probe(pid, "query", "--format", "json", HAS_ALL).stdout)
    finally:
        (folder / "pause").unlink()

    assert row == {"all_have": True, "num": 8}
