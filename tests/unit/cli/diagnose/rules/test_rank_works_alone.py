"""One rank works alone while the others wait."""

from __future__ import annotations

import pytest

from probe_cli.cluster.hang.verdict import State, Verdict
from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps
from .looking import Told, looked

SLOW = Verdict(
    State.SLOW, "no hang so far: rank 0 has not come to all_reduce 7; rank 0 runs in evaluate (train.py:88)",
    ranks=(0,), cause="absent",
)  # fmt: skip


def test_the_rank_and_its_line_are_named(judged: Judged, steps: Steps) -> None:
    ended = {"python.steps": steps(50)}

    suspected = judged("rank-works-alone", ended, ended)
    (found,) = looked("rank-works-alone", Told(verdict_of_hang=SLOW), suspected)

    assert found.ranks == (0,)
    assert "runs in evaluate (train.py:88)" in found.sentence


def test_ranks_that_all_work_are_fine() -> None:
    both = Verdict(State.SLOW, "no hang so far: ranks 0-1 compile", ranks=(0, 1), cause="no progress")

    assert looked("rank-works-alone", Told(verdict_of_hang=both)) == []


def test_a_job_that_gets_on_is_not_looked_at(judged: Judged, steps: Steps) -> None:
    ended = {"python.steps": steps(50)}

    assert judged("rank-works-alone", ended, ended, seconds=1e12) == []


def test_one_rank_has_no_others(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("rank-works-alone", {})
