"""/dev/shm is nearly full."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def sample(used: float) -> dict[str, object]:
    return {"step": 1, "ts": "2026-01-01", "period": 1.0, "shm_used": used, "shm_free": 64.0 - used}


def test_little_room_is_named(judged: Judged) -> None:
    (found,) = judged("shm-near-full", {"process.samples": [sample(60.0)]})

    assert found.sentence == "/dev/shm is 94 % full: 4 MiB of 64 MiB are left"


def test_enough_room_is_fine(judged: Judged) -> None:
    assert judged("shm-near-full", {"process.samples": [sample(20.0)]}) == []


def test_without_a_folder_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("shm-near-full", {"process.samples": []})
