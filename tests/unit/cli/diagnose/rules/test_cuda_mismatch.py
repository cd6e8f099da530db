"""CUDA, the driver and torch do not fit each other."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged


def host(
    cuda: str | None, driver: str | None = "580.10.1", device: str = "cuda:0"
) -> dict[str, list[dict[str, object]]]:
    versions = {"torch": "2.13.0", "cuda of torch": cuda, "hip of torch": None, "nvidia driver": driver}
    return {
        "process.env": [{"kind": "version", "name": name, "value": value} for name, value in versions.items()],
        "gpu.samples": [{"ts": "2026-01-01", "gpu": 0, "uuid": "GPU-0", "name": "H100"}],
        "torch.modules": [{"module": "GPT", "depth": 0, "device": device}],
    }


def test_a_driver_that_is_too_old_is_named(judged: Judged) -> None:
    (found,) = judged("cuda-mismatch", host("12.8", "470.57.2"))

    assert "driver 470.57.2 is too old for CUDA 12.8" in found.sentence
    assert "525" in found.advice[0]


def test_a_torch_without_cuda_and_a_model_on_the_cpu_are_named(judged: Judged) -> None:
    (without,) = judged("cuda-mismatch", host(None))
    (on_cpu,) = judged("cuda-mismatch", host("12.8", device="cpu"))

    assert "built without CUDA" in without.sentence
    assert "GPT is on the CPU" in on_cpu.sentence


def test_what_fits_is_fine(judged: Judged) -> None:
    assert judged("cuda-mismatch", host("12.8")) == []


def test_without_a_gpu_there_is_nothing_to_judge_and_without_versions_no_evidence(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("cuda-mismatch", {})
    with pytest.raises(NoEvidence):
        judged("cuda-mismatch", {**host("12.8"), "process.env": []})
