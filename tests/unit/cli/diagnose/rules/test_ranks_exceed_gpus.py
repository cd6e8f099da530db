"""More ranks run on a host than it has GPUs, or two ranks use one GPU."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def gpus(num: int, *uses: tuple[int, int], device: str = "cuda:0") -> dict[str, list[dict[str, object]]]:
    """`uses`: a GPU and the pid of a process on it; `device`: what the rank has memory on."""
    return {
        "torch.memory": [{"ts": "2026-01-01", "device": device}] if device else [],
        "gpu.samples": [{"ts": "2026-01-01", "gpu": at, "uuid": f"GPU-{at}"} for at in range(num)],
        "gpu.processes": [{"ts": "2026-01-01", "gpu": at, "uuid": f"GPU-{at}", "process": pid} for at, pid in uses],
    }


def test_too_many_ranks_are_counted(judged: Judged) -> None:
    (found,) = judged("ranks-exceed-gpus", gpus(1), gpus(1))

    assert found.sentence == "2 ranks run on node1, which has 1 GPU"


def test_ranks_that_share_a_gpu_are_named(judged: Judged) -> None:
    used = gpus(4, (0, 100), (0, 101), (1, 7))  # pid 7 is another job's

    (found,) = judged("ranks-exceed-gpus", used, used)

    assert (found.ranks, found.where) == ((0, 1), "GPU-0")


def test_ranks_on_the_cpu_need_no_gpu(judged: Judged) -> None:
    assert judged("ranks-exceed-gpus", gpus(1, device=""), gpus(1, device="")) == []


def test_a_gpu_for_each_rank_is_fine(judged: Judged) -> None:
    used = gpus(2, (0, 100), (1, 101))

    assert judged("ranks-exceed-gpus", used, used) == []


def test_without_a_gpu_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("ranks-exceed-gpus", {}, {})
