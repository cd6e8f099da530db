"""The sources of `process.env`, which change nothing in the process."""

from __future__ import annotations

import os
import random
import sys
import threading
import warnings
from typing import Any

import pytest

from probe_agent.recorder.config import Settings
from probe_agent.recorder.operations import environment
from probe_agent.recorder.source import Recorder


def ask() -> list[list[Any]]:
    """Return the rows, read on a separate thread as in a target."""
    found: list[dict[str, Any]] = []
    recorder = Recorder(Settings({}), lambda name, error: None)
    thread = threading.Thread(target=lambda: found.append(environment.answer(recorder, {})))
    thread.start()
    thread.join()
    assert tuple(found[0]["columns"]) == environment.COLUMNS
    return found[0]["rows"]


def test_variables_of_a_job_are_shown_and_secrets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "TORCH_SHOW_CPP_STACKTRACES": "1", "MKL_DYNAMIC": "FALSE"}
    kept = {
        "AWS_SECRET_ACCESS_KEY": "x",
        "WANDB_API_KEY": "x",
        "PROBE_TOKEN": "x",
        "TORCH_HUB_TOKEN": "x",
        "CUDA_PASSWORD": "x",
        "HOME": "x",
        "DATABASE_URL": "x",
    }
    for name, value in {**told, **kept, "UCX_PROXY": "tcp://me:secret@host:1/a"}.items():
        monkeypatch.setenv(name, value)

    found = {name: value for kind, name, value, _ in ask() if kind == "variable"}

    assert told.items() <= found.items()
    assert found["UCX_PROXY"] == "tcp://***@host:1/a"
    assert not kept.keys() & found.keys()


def test_versions_and_settings_are_there() -> None:
    rows = ask()

    assert ["version", "python", ".".join(map(str, sys.version_info[:3])), None] in rows
    assert ["probe", "trace.every", "20", None] in rows
    assert ["setting", "cpus the main thread may use", str(len(os.sched_getaffinity(0))), None] in rows


@pytest.mark.torch
def test_asking_changes_nothing_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")

    def state() -> list[object]:
        return [
            set(sys.modules),
            dict(os.environ),
            random.getstate(),
            torch.get_rng_state().tolist(),
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.benchmark,
            torch.get_default_dtype(),
            threading.active_count(),
        ]

    before = state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = ask()

    assert state() == before
    assert capfd.readouterr() == ("", "")
    assert ["version", "torch", str(torch.__version__), None] in rows
    assert ["setting", "torch.get_float32_matmul_precision()", "highest", None] in rows


@pytest.mark.torch
def test_a_model_that_is_being_built_is_read() -> None:
    """Between any two lines of the recorder, the job adds a layer or takes one out."""
    from torch import nn

    from probe_agent.recorder.operations import modules

    model = nn.Sequential(nn.Identity())
    recorder = Recorder(Settings({}), lambda name, error: None)
    answers: list[dict[str, Any]] = []

    def build(frame: Any, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(("operations/environment.py", "operations/modules.py")):
            return None
        if event == "line":
            if len(model._modules) < 9:
                model.add_module(str(len(model._modules)), nn.Identity())
            else:
                model._modules.popitem()
        return build

    def read() -> None:
        sys.settrace(build)
        answers.extend(operation.answer(recorder, {}) for operation in (environment, modules))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert len(model._modules) > 1
    assert len(answers) == 2
    assert all(answer["rows"] for answer in answers)
