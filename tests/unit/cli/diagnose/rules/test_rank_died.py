"""A rank has ended with an error, or a thread of it."""

from __future__ import annotations

import pytest

from probe_cli.cluster.hang.verdict import State, Verdict
from probe_cli.diagnose.finding import Certainty, NotApplicable

from .conftest import Judged
from .looking import Told, looked

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


def test_an_error_of_a_kernel_may_be_of_an_earlier_line(judged: Judged) -> None:
    """As torch 2.11 put it on an H200."""
    message = (
        "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda\n"
        "CUDA kernel errors might be asynchronously reported at some other API call.\nFor debugging consider …"
    )

    (found,) = judged("rank-died", {"python.exceptions": [{**RAISED, "type": "AcceleratorError", "message": message}]})
    (other,) = judged("rank-died", {"python.exceptions": [RAISED]})

    assert found.sentence == "rank 0 ended: AcceleratorError: CUDA error: device-side assert triggered"
    assert "CUDA_LAUNCH_BLOCKING=1" in found.advice[0]
    assert "CUDA" not in "".join(other.advice)


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


TIMED_OUT = {**RAISED, "type": "RuntimeError", "message": "Timed out waiting 15000ms for recv operation to complete"}


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (State.DIED, "the job has died of a hang: rank 1 has not come to all_reduce 7"),
        (State.HANGS, None),  # rank 1 lives: the rule about hangs tells it
    ],
)
def test_a_rank_whose_call_timed_out_is_a_victim_of_the_one_that_did_not_come(
    judged: Judged, state: State, told: str | None
) -> None:
    verdict = Verdict(state, "the job has died of a hang: rank 1 has not come to all_reduce 7", (1,), "absent")

    found = looked("rank-died", Told(verdict_of_hang=verdict), judged("rank-died", {"python.exceptions": [TIMED_OUT]}))

    assert [(one.sentence, one.ranks) for one in found] == [(told, (1,))] * (told is not None)
    assert all("rank == 0" in one.advice[1] for one in found)


@pytest.mark.parametrize(
    "verdict", [Verdict(State.DIED, "rank 0 was the first to end", (0,), "gone"), NotApplicable("a report")]
)
def test_without_a_hang_before_it_the_first_error_stands(judged: Judged, verdict: object) -> None:
    first = judged("rank-died", {"python.exceptions": [TIMED_OUT]})

    assert looked("rank-died", Told(verdict_of_hang=verdict), first) == first
