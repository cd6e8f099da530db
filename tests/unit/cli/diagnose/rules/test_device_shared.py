"""Other processes on the job's GPU: rows made by hand, for no GPU has made any yet."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged

OURS: dict[str, Any] = {"pid": 100, "gpu": 0, "uuid": "GPU-a", "process": 100, "command": "python", "used": 40_000.0}


def test_another_process_on_the_same_gpu_is_named(judged: Judged) -> None:
    other = {**OURS, "pid": None, "process": 7, "command": "jupyter", "used": 9_000.0}

    (found,) = judged("device-shared", {"gpu.processes": [OURS, other]})

    assert "process 7 (jupyter)" in found.sentence


def test_a_small_one_and_one_on_another_gpu_are_fine(judged: Judged) -> None:
    small = {**OURS, "pid": None, "process": 7, "used": 10.0}
    elsewhere = {**OURS, "pid": None, "process": 7, "uuid": "GPU-b", "gpu": 1}

    assert judged("device-shared", {"gpu.processes": [OURS, small, elsewhere]}) == []


def test_without_a_gpu_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("device-shared", {})
