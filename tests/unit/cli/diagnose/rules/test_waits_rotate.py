"""The ranks wait now for one of them and now for another."""

from __future__ import annotations

import pytest

from probe_cli.cluster.compare.comparison import Comparison, Verdict
from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable

from .conftest import Judged, Steps
from .looking import Told, looked

NAMED = Verdict(
    "rotates",
    "no rank holds the job up for long: ranks wait now for one and now for another",
    share=0.3,
    where="data_wait",
    num_steps=100,
)
OTHER = Verdict("rotates", "ranks wait now for one and now for another", share=0.06, num_steps=100)
NOBODY = Verdict("nobody", "no rank holds the job up")


def told(verdict: Verdict) -> Told:
    return Told(4, comparison=Comparison(verdict, (), (), ()))


def test_what_the_comparison_names_is_told(judged: Judged, steps: Steps) -> None:
    fast, slow = {"python.steps": steps(50)}, {"python.steps": steps(50, data_wait=0.05, backward=0.001)}

    (suspected,) = judged("waits-rotate", fast, slow)
    (found,) = looked("waits-rotate", told(NAMED), [suspected])

    assert suspected.certainty is Certainty.SUSPECTED
    assert (found.share, found.where, found.ranks) == (0.3, "data_wait", ())
    assert "prefetch_factor" in found.advice[0]


def test_turns_that_cost_little_and_an_all_clear_are_fine() -> None:
    assert looked("waits-rotate", told(OTHER)) == []
    assert looked("waits-rotate", told(NOBODY)) == []


def test_ranks_whose_phases_take_equally_long_are_compared_too(judged: Judged, steps: Steps) -> None:
    (suspected,) = judged("waits-rotate", {"python.steps": steps(50)}, {"python.steps": steps(50)})

    assert suspected.certainty is Certainty.SUSPECTED


def test_one_rank_has_no_peers_and_few_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("waits-rotate", {"python.steps": steps(50)})
    with pytest.raises(NoEvidence):
        judged("waits-rotate", {"python.steps": steps(5)}, {"python.steps": steps(50)})
