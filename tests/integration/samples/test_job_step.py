"""A job whose optimizer counts nothing: its answers say so, until the setting names the job's counter."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from support.commands import Probe, environment, probe_in
from support.forked import Forked

pytestmark = pytest.mark.torch

#: The loss is the number of the step, so that a row tells both. The child that it forks trains on.
PROGRAM = """
import os, time, types
import torch
net = torch.nn.Linear(4, 1)
trainer = types.SimpleNamespace(global_step=0)
optimizer = torch.optim.SGD(net.parameters(), 0.0)
def train(num_steps):
    for _ in range(num_steps):
        optimizer.zero_grad()
        (net(torch.ones(2, 4)).sum() * 0 + trainer.global_step).backward()
        optimizer.step()
        trainer.global_step += 1
        time.sleep(0.004)
train(100)
child = os.fork()
if child:
    print(child, flush=True)
train(1_000_000)
"""
NOTE = "is counted from the attach: the job's own count is not known"


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return probe_in(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def family(probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The PIDs of a job and of its forked child, attached to."""
    pytest.importorskip("torch")
    program = tmp_path_factory.mktemp("program") / "train.py"
    program.write_text(PROGRAM)
    with Forked([program], stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        child = process.stdout.readline().decode().strip()
        pids = [str(process.pid), child]
        try:
            for pid in pids:
                assert probe(pid, "inject").returncode == 0
            yield pids
        finally:
            for pid in pids:
                subprocess.run(["kill", "-9", pid], check=False)


def rows(probe: Probe, pid: str, where: str) -> tuple[list[list[float]], str]:
    """Return rows of step, loss and counted, once there are ten; and the notes."""
    for _ in range(50):
        sql = f"SELECT step, loss, counted FROM python.steps WHERE loss IS NOT NULL AND {where} ORDER BY ts"
        answer = probe(pid, "query", sql, "--format", "json")
        found = [list(row.values()) for row in json.loads(answer.stdout or "[]")]
        if len(found) >= 10:
            return found, answer.stderr + answer.stdout
    raise AssertionError(answer)


@pytest.mark.parametrize("which", [0, 1], ids=["job", "forked child"])
def test_step_is_the_jobs_once_it_is_known(probe: Probe, family: list[str], which: int) -> None:
    pid = family[which]
    before, told = rows(probe, pid, "true")
    ranks = probe(pid, "ranks").stderr if which == 0 else NOTE
    listed = probe("list").stderr
    changed = probe(pid, "config", "step.from=trainer.global_step")
    after, told_after = rows(probe, pid, "counted")

    assert NOTE in told
    assert NOTE in ranks
    assert pid in next(line for line in listed.splitlines() if NOTE in line).replace(",", "").split()
    assert "config step.from=VARIABLE" in told
    assert all(not counted and loss - step >= 100 for step, loss, counted in before)
    assert changed.returncode == 0
    assert NOTE not in told_after
    assert all(step == loss for step, loss, _ in after)
    if which == 1:
        shown = json.loads(probe(pid, "config", "--format", "json").stdout)
        setting = next(one for one in shown if "step.from" in one.values())
        assert setting["in_force"] == "trainer.global_step"


def test_an_expression_is_refused_as_a_variable(probe: Probe, family: list[str]) -> None:
    refused = probe(family[0], "config", "step.from=print()")

    assert refused.returncode != 0
    assert "invalid value 'print()' for step.from" in refused.stderr
    assert "such as trainer.global_step" in refused.stderr
