"""A debug setting was left on."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged


def variable(name: str, value: str) -> dict[str, object]:
    return {"kind": "variable", "name": name, "value": value}


def test_flags_that_cost_time_are_named(judged: Judged) -> None:
    rows = [variable("CUDA_LAUNCH_BLOCKING", "1"), variable("NCCL_DEBUG", "INFO"), variable("HOME", "/root")]

    (found,) = judged("debug-flags", {"process.env": rows})

    assert found.sentence == "debug settings were left on: CUDA_LAUNCH_BLOCKING=1, NCCL_DEBUG=INFO"


def test_flags_that_are_off_are_fine(judged: Judged) -> None:
    rows = [variable("CUDA_LAUNCH_BLOCKING", "0"), variable("NCCL_DEBUG", "WARN")]

    assert judged("debug-flags", {"process.env": rows}) == []


def test_a_recorder_that_did_not_answer_is_no_evidence(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("debug-flags", {})
