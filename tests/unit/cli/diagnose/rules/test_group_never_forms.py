"""The process group does not form."""

from __future__ import annotations

from .conftest import Judged

WAITS = {
    "phase": "init_process_group", "name": "node1:29500", "began": "2026-01-01", "duration": 40.0, "is_now": True,
    "num_come": 2, "come": "0, 1", "late": None, "problem": None,
}  # fmt: skip


def test_the_ranks_that_have_not_come_are_named(judged: Judged) -> None:
    (found,) = judged("group-never-forms", {"python.startup": [WAITS]}, {"python.startup": [WAITS]}, world_size=4)

    assert "2 ranks (2-3) of 4" in found.sentence
    assert found.ranks == (0, 1)


def test_what_a_late_rank_of_the_host_does_is_told(judged: Judged) -> None:
    late = {**WAITS, "late": "rank 2: sleeps in load (data.py:7)"}

    (found,) = judged("group-never-forms", {"python.startup": [late]}, world_size=3)

    assert "rank 2: sleeps in load (data.py:7)" in found.evidence


def test_a_group_that_is_about_to_form_is_fine(judged: Judged) -> None:
    short, over = {**WAITS, "duration": 3.0}, {**WAITS, "is_now": False}

    assert judged("group-never-forms", {"python.startup": [short, over]}, world_size=4) == []


def test_a_recorder_that_came_later_saw_no_start(judged: Judged) -> None:
    assert judged("group-never-forms", {}, world_size=4) == []
