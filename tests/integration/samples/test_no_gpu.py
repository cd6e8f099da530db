"""Answers about GPU memory without a GPU."""

from __future__ import annotations

import pytest

from tests.integration.server.conftest import Host

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _without_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")


def test_allocator_statistics_of_a_cpu_target_are_empty_with_a_remark(host: Host) -> None:
    answer = host.query("SELECT * FROM torch.memory")

    assert answer["rows"] == []
    assert "no CUDA device has been used" in str(answer["notes"])


def test_blocks_of_a_cpu_target_are_an_error_that_says_so(host: Host) -> None:
    error = host.error("SELECT * FROM torch.memory_blocks")

    assert "uses no CUDA device" in error["message"]
    assert "process.samples" in error["hint"]


def test_gpus_of_a_host_without_nvml_are_no_rows_with_a_remark(host: Host) -> None:
    answer = host.query("SELECT * FROM gpu.samples")

    if answer["rows"]:
        pytest.skip("there is a GPU")
    assert "gpu.samples has no rows: NVML says" in str(answer["notes"])
    assert [column["name"] for column in answer["columns"]][:6] == ["host", "pid", "rank", "world_size", "job", "ts"]  # type: ignore[attr-defined]
