"""Settings that would serve on this GPU are not in use."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import Certainty, NotApplicable

from .conftest import Judged


def job(
    device: str = "cuda:0",
    dtype: str = "float32",
    fused: str = "false",
    compiled: bool = False,
    autocast: str | None = None,
) -> dict[str, object]:
    model = {"module": "GPT", "depth": 0, "device": device, "dtype": dtype, "compiled": compiled, "autocast": autocast}
    return {
        "torch.modules": [model],
        "torch.optimizers": [{"optimizer": "AdamW", "device": device, "options": f'{{"fused": {fused}}}'}],
        "process.env": [
            {"kind": "setting", "name": "torch.get_float32_matmul_precision()", "value": "highest"},
            {"kind": "hardware", "name": "cuda capability", "value": "9.0"},
        ],
    }


def test_what_the_gpu_has_and_the_job_does_not_use_is_listed_as_advice(judged: Judged) -> None:
    (found,) = judged("faster-settings", job())

    assert found.certainty is Certainty.POSSIBLE
    assert found.share == 0.0
    assert {text.split(":")[0].split("(")[0] for text in found.advice} == {
        "bfloat16 for most of the work", "TF32 for float32 matrices", "a fused optimizer", "torch.compile",
    }  # fmt: skip


def test_a_job_that_uses_them_is_fine(judged: Judged) -> None:
    assert judged("faster-settings", job(dtype="bfloat16", fused="true", compiled=True)) == []


def test_autocast_that_is_on_is_not_advised(judged: Judged) -> None:
    (found,) = judged("faster-settings", job(autocast="bfloat16"))

    assert {text.split(":")[0].split("(")[0] for text in found.advice} == {"a fused optimizer", "torch.compile"}


def test_a_job_on_a_cpu_has_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("faster-settings", job("cpu"))
