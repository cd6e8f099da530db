"""A debug setting was left on."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence

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


def setting(name: str, value: str) -> dict[str, object]:
    return {"kind": "setting", "name": name, "value": value}


def test_what_was_switched_on_in_code_is_named_with_how_to_switch_it_off(judged: Judged) -> None:
    rows = [
        setting("torch.is_anomaly_enabled()", "True"),
        setting("torch.autograd.profiler._is_profiler_enabled", "True"),
    ]

    (found,) = judged("debug-flags", {"process.env": rows})

    assert "anomaly detection is on" in found.sentence
    assert "torch's profiler is on" in found.sentence
    assert "set_detect_anomaly(False)" in found.try_first


def test_a_compiler_that_traces_a_backward_has_left_nothing_on(judged: Judged) -> None:
    anomaly, checks_nan = "torch.is_anomaly_enabled()", "torch.is_anomaly_check_nan_enabled()"
    traced = [setting(anomaly, "True"), setting(checks_nan, "False")]

    assert judged("debug-flags", {"process.env": traced}) == []
    assert judged("debug-flags", {"process.env": [setting(anomaly, "True"), setting(checks_nan, "True")]})


def test_deterministic_algorithms_may_be_wanted(judged: Judged) -> None:
    rows = [setting("torch.are_deterministic_algorithms_enabled()", "True")]

    (found,) = judged("debug-flags", {"process.env": rows})

    assert found.certainty is Certainty.POSSIBLE


def test_cudnn_is_of_no_concern_without_a_gpu_in_use(judged: Judged) -> None:
    setting = {"kind": "setting", "name": "torch.backends.cudnn.deterministic", "value": "True"}
    gpu = {"kind": "hardware", "name": "cuda devices", "value": "8"}

    assert judged("debug-flags", {"process.env": [setting]}) == []
    assert len(judged("debug-flags", {"process.env": [setting, gpu]})) == 1
