"""A GPU of the job reports errors."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import Certainty, NotApplicable

from .conftest import Judged


def gpu(*uncorrected: int, xids: int = 0, last: int | None = None) -> dict[str, list[dict[str, object]]]:
    row = {"pid": 100, "device": "cuda:0", "num_xids": xids, "last_xid": last}
    return {
        "gpu.samples": [
            {"ts": f"2026-01-01 00:00:{at:02}", "ecc_uncorrected": number, **row}
            for at, number in enumerate(uncorrected)
        ]
    }


def test_memory_errors_since_the_first_look_and_xids_are_told(judged: Judged) -> None:
    (memory,) = judged("gpu-errors", gpu(3, 3, 5))
    (xid,) = judged("gpu-errors", gpu(0, 0, xids=1, last=79))

    assert memory.sentence == "the GPU reports errors: 2 uncorrected memory errors"
    assert "Xid 79" in xid.sentence


def test_an_xid_that_programs_cause_is_only_possibly_the_hardwares(judged: Judged) -> None:
    (found,) = judged("gpu-errors", gpu(0, xids=1, last=31))

    assert found.certainty is Certainty.POSSIBLE


def test_errors_of_long_ago_are_fine(judged: Judged) -> None:
    assert judged("gpu-errors", gpu(3, 3, 3)) == []


def test_without_a_gpu_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("gpu-errors", {})
