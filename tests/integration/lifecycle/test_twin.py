"""A job that is attached to, queried and detached from computes the same as its undisturbed twin, bit for bit.

It names parts of itself with `probe_agent.span`, which are recorded while the recorder is there.
"""

from __future__ import annotations

import json
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


SPANS = "SELECT path, count(*) AS n, bool_or(on_training_thread) AS here FROM python.spans GROUP BY path ORDER BY path"


def spans(probe: Any, pid: int) -> list[dict[str, Any]]:
    """Return the rows once all three are there, also from the time when the thread that trains is known."""
    found: list[dict[str, Any]] = json.loads(probe(pid, "query", "--format", "json", SPANS)[1])
    return found if len(found) == 3 and all(row["here"] for row in found) else []


@pytest.mark.parametrize("start", ["inject", pytest.param("PROBE", marks=pytest.mark.long)])
def test_the_spans_of_a_job_are_recorded_until_the_detach(start: str, tmp_path: Path, probe: Any) -> None:
    with training("eager", tmp_path, PROBE=str(int(start == "PROBE"))) as job:
        wait_until_ready(job)
        if start == "inject":
            assert probe(job.pid, "inject")[0] == 0
        rows = until(lambda: spans(probe, job.pid), 60)
        until(lambda: "spans " in probe(job.pid, "status")[1], 60)  # it needs steps that have ended since
        detached = probe(job.pid, "detach")[0]
        job.finish()

    assert [(row["path"], row["here"]) for row in rows] == [("guess", True), ("guess/model", True), ("log", True)]
    assert detached == 0


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


@pytest.mark.long  # tests/integration/distributed and programs compare ranks with their twins, too
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
