"""Checkpoints that could not be loaded."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from .conftest import Judged


def row(step: int, **others: Any) -> dict[str, Any]:
    """A call at a step, half a second long."""
    usual = {
        "kind": "save",
        "function": "torch.save",
        "path": "/data/a.pt",
        "duration": 0.5,
        "size": 100.0,
        "error": None,
    }
    at = datetime(2026, 1, 1) + timedelta(seconds=0.1 * step)
    return {"step": step, "ts": at, **usual, "free": 9_000.0, "on_training_thread": True, **others}


@pytest.mark.parametrize(
    ("type_", "message", "why"),
    [
        (
            "RuntimeError",
            "Error(s) in loading state_dict for Net: Missing key(s) in state_dict: a.b",
            "keys do not match",
        ),
        ("RuntimeError", "Error(s) in loading state_dict for Net: size mismatch for a.weight", "shapes differ"),
        (
            "ValueError",
            "loaded state dict has a different number of parameter groups",
            "keys do not match|cannot be read",
        ),
        ("RuntimeError", "PytorchStreamReader failed reading zip archive", "cannot be read"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'last.ckpt'", "does not exist"),
    ],
)
def test_an_exception_of_a_load_is_named(judged: Judged, type_: str, message: str, why: str) -> None:
    raised = {"step": -1, "type": type_, "message": message, "file": "/job/train.py", "lineno": 3}

    (found,) = judged("load-failed", {"python.exceptions": [raised]})

    assert any(text in found.sentence for text in why.split("|"))


def test_a_load_whose_exception_the_job_has_caught_is_named(judged: Judged) -> None:
    failed = row(-1, kind="load", error="FileNotFoundError: [Errno 2] No such file or directory: 'a.pt'")

    (found,) = judged("load-failed", {"python.checkpoints": [failed]})

    assert found.share == 0.5


def test_a_load_that_passed_over_all_keys_is_named(judged: Judged) -> None:
    text = "load_state_dict with strict=False loaded nothing: of the checkpoint's 4 keys, such as module.0.weight"

    (found,) = judged("load-failed", {"python.checkpoints": [row(-1, kind="load", path=None, error=text)]})

    assert "none of its keys are the model's" in found.sentence
    assert any("'module.' of DDP" in advice for advice in found.advice)


def test_other_exceptions_and_good_loads_are_fine(judged: Judged) -> None:
    other = {"step": 5, "type": "FileNotFoundError", "message": "No such file: 'words.txt'"}

    assert judged("load-failed", {"python.exceptions": [other], "python.checkpoints": [row(-1, kind="load")]}) == []
    assert judged("load-failed", {}) == []


def test_what_was_loaded_from_an_open_file_has_no_path(judged: Judged) -> None:
    rows = [row(10, kind="load", function="torch.load", path=None, error="invalid magic number")]

    (found,) = judged("load-failed", {"python.checkpoints": rows})

    assert found.evidence[1] == "at an object without a path"
    assert "None" not in str(found.try_first)
