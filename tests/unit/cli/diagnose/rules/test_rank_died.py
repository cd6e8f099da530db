"""A rank has ended with an error, or a thread of it."""

from __future__ import annotations

from probe_cli.diagnose.finding import Certainty

from .conftest import Judged

RAISED = {
    "step": 7, "ts": "2026-01-01 00:00:01", "thread": "MainThread", "is_main": True, "number": 0, "link": 0,
    "type": "ValueError", "message": "sample 7311 has no label", "func": "read", "file": "/job/data.py", "lineno": 88,
}  # fmt: skip
LOST = {
    **RAISED, "ts": "2026-01-01 00:00:00", "type": "RuntimeError",
    "message": "[../gloo/pair.cc:546] Connection closed by peer [127.0.0.1]:7",
}  # fmt: skip


def test_the_first_error_of_its_own_is_the_cause(judged: Judged) -> None:
    (found,) = judged("rank-died", {"python.exceptions": [LOST]}, {"python.exceptions": [RAISED]})

    assert found.sentence == "rank 1 ended: ValueError: sample 7311 has no label"
    assert (found.ranks, found.where, found.since_step) == ((1,), "data.py:88", 7)
    assert any("ranks 0 lost" in text for text in found.evidence)


def test_a_rank_that_was_killed_is_named(judged: Judged) -> None:
    killed = {"step": 7, "ts": "2026-01-01 00:00:01", "how": "was killed by SIGKILL", "signal": "SIGKILL"}

    (found,) = judged("rank-died", {}, {"process.end": [killed]})

    assert found.sentence == "rank 1 ended: was killed by SIGKILL"


def test_a_thread_that_raised_is_told_though_the_process_lives(judged: Judged) -> None:
    thread = {**RAISED, "thread": "prefetch", "is_main": False}

    (found,) = judged("rank-died", {"python.exceptions": [thread]})

    assert found.sentence.startswith("thread prefetch has ended: ValueError")
    assert found.certainty is Certainty.LIKELY


def test_a_program_that_has_come_to_its_end_is_fine(judged: Judged) -> None:
    ended = {"step": 7, "ts": "2026-01-01", "how": "has ended", "exit_code": 0}

    assert judged("rank-died", {"process.end": [ended]}, {}) == []
