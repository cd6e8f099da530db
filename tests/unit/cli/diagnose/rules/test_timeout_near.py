"""A collective waits, and torch will end the job soon."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def waiting(age: float, timeout: float = 600.0, state: str = "scheduled") -> dict[str, object]:
    call = {"op": "all_reduce", "seq": 7, "group": "0", "age": age, "timeout": timeout, "state": state, "is_p2p": False}
    return {"torch.flight_recorder": [call]}


def test_what_is_left_of_the_timeout_is_told(judged: Judged) -> None:
    (found,) = judged("timeout-near", waiting(200.0), {})

    assert "33 %" in found.sentence
    assert "400 s" in found.sentence
    assert found.ranks == (0,)


def test_a_call_of_a_moment_ago_and_one_that_is_over_are_fine(judged: Judged) -> None:
    assert judged("timeout-near", waiting(20.0), waiting(3.0, timeout=4.0)) == []
    assert judged("timeout-near", waiting(500.0, state="completed"), {}) == []


def test_one_rank_waits_for_nobody(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("timeout-near", {})
