"""Names that only the frames of a framework have: eval and the live tables find them and say where."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.commands import environment, probe
from support.forked import Forked

PROGRAM = Path(__file__).parents[2] / "targets" / "framework_names.py"
START_S = 90
WAIT_FOR_LOSS = """
for _ in range(5000):
    try:
        if loss is not None: break
    except NameError:
        __import__("time").sleep(0.001)
type(loss).__name__
"""
pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]
Ask = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ask]]:
    """`job(kind)(…)` runs `probe PID …` on the program of that kind, which is started on the first use."""
    pytest.importorskip("torch")
    started: dict[str, Ask] = {}
    with ExitStack() as running:

        def of(kind: str) -> Ask:
            if kind != "hidden" and find_spec(kind) is None:
                pytest.skip(f"{kind} is not installed (extra `frameworks`)")
            if kind not in started:
                folder = tmp_path_factory.mktemp(kind)
                errors = running.enter_context((folder / "errors").open("wb"))
                process = running.enter_context(
                    Forked(
                        [PROGRAM, kind, folder],
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        env=environment(PROBE_TRACE_EVERY="2"),
                    )
                )
                running.callback(process.kill)
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n", (folder / "errors").read_text()
                ask = started[kind] = asks(process.pid)
                ask("config", "trace.every=2")
            return started[kind]

        yield of


def asks(pid: int) -> Ask:
    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return probe(str(pid), *arguments)

    return ask


def rows(ask: Ask, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query, once there are some."""
    deadline = time.monotonic() + 20
    while True:
        done = ask("query", sql, "--format", "json")
        if done.returncode == 1 and "no rows" in done.stderr and time.monotonic() < deadline:
            continue
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        if found or time.monotonic() > deadline:
            return found


@pytest.mark.parametrize(
    ("kind", "code", "result", "where"),
    [
        ("transformers", "self.state.global_step == global_step > 0", "True", "self: local of Trainer.train() at "),
        ("transformers", "trainer.state.global_step == global_step", "True", "trainer: the only object whose class "),
        pytest.param(
            *("lightning", "trainer.global_step == global_step > 0", "True", "trainer: local of "),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("lightning", "type(self).__name__", "'Trainer'", "self: local of Trainer.fit() at trainer/trainer.py:"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_names_in_library_frames_are_found_with_their_place(
    job: Callable[[str], Ask], kind: str, code: str, result: str, where: str
) -> None:
    done = job(kind)("eval", "--at-step", code)

    assert done.stdout.strip() == result, done.stderr
    assert any(line.startswith(where) and line.endswith("in a library frame") for line in done.stderr.splitlines())


@pytest.mark.parametrize("kind", ["transformers", pytest.param("lightning", marks=pytest.mark.long)])
def test_the_loss_is_found_while_a_frame_holds_it(job: Callable[[str], Ask], kind: str) -> None:
    done = job(kind)("eval", WAIT_FOR_LOSS)

    assert done.stdout.strip() == "'Tensor'", done.stderr
    assert "loss: local of " in done.stderr


def test_a_name_that_is_nowhere_says_where_we_looked(job: Callable[[str], Ask]) -> None:
    done = job("transformers")("eval", "--at-step", "los")

    assert done.returncode == 1
    assert "frames of the job and " in done.stderr + done.stdout
    assert "of libraries on the training thread" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("kind", "optimizer", "model"),
    [
        ("transformers", "AcceleratedOptimizer", "Tiny"),
        pytest.param("lightning", "AdamW", "Task", marks=pytest.mark.long),
        ("hidden", "SGD", "Tiny"),
    ],
)
def test_the_objects_of_the_recorded_steps_are_in_the_live_tables(
    job: Callable[[str], Ask], kind: str, optimizer: str, model: str
) -> None:
    ask = job(kind)

    assert rows(ask, "SELECT step FROM python.torch_trace LIMIT 1")
    optimizers = rows(ask, "SELECT DISTINCT optimizer, place FROM torch.optimizers")
    for _ in range(20):
        modules = rows(ask, "SELECT module, place FROM torch.modules WHERE depth = 0")
        if kind != "hidden" or "of forward()" not in modules[0]["place"]:
            break  # not in the moment in which it is called, when it has a frame of its own

    assert [row["optimizer"] for row in optimizers] == [optimizer]
    assert [row["module"] for row in modules] == [model]
    if kind == "hidden":
        assert optimizers[0]["place"] == "seen when it stepped; no frame leads to it"
        assert modules[0]["place"] == "seen when it was called; no frame leads to it"
