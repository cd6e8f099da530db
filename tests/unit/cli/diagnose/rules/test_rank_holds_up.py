"""The job waits for one rank, or for several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe_cli.cluster.compare.comparison import Comparison, Verdict
from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable

from .conftest import Judged, Steps
from .looking import Told, looked

NAMED = Verdict(
    "stands out",
    "rank 1 holds the job up: 40 % of its time",
    ranks=(1,),
    kind="rank",
    where="data_wait",
    cost=0.04,
    share=0.4,
    share_low=0.35,
    share_high=0.45,
    num_steps=100,
    step=0.1,
    line="read at data.py:7",
)
OTHER = Verdict("stands out", "stage 1 (ranks 2-3) holds the job up", ranks=(2, 3), kind="stage", share=0.4)
NOBODY = Verdict("nobody", "no rank holds the job up")


def told(verdict: Verdict) -> Told:
    return Told(4, comparison=Comparison(verdict, (), (), ()))


def test_what_the_comparison_names_is_told(judged: Judged, steps: Steps) -> None:
    fast, slow = {"python.steps": steps(50)}, {"python.steps": steps(50, data_wait=0.05, backward=0.001)}

    (suspected,) = judged("rank-holds-up", fast, slow)
    (found,) = looked("rank-holds-up", told(NAMED), [suspected])

    assert suspected.certainty is Certainty.SUSPECTED
    assert (found.ranks, found.share, found.where) == ((1,), 0.4, "data_wait, read at data.py:7")
    assert any("loader workers" in text for text in found.advice)


@pytest.mark.parametrize(("share", "certainty"), [(0.4, Certainty.POSSIBLE), (0.6, Certainty.CERTAIN)])
def test_a_rank_that_alone_trains_has_work_of_its_own(
    judged: Judged, steps: Steps, share: float, certainty: Certainty
) -> None:
    acts, learns = {"python.steps": steps(50, backward=None)}, {"python.steps": steps(50)}

    suspected = judged("rank-holds-up", acts, learns, acts)
    (found,) = looked("rank-holds-up", told(replace(NAMED, share=share)), suspected)

    assert found.certainty is certainty
    assert any("alone trains" in text for text in found.evidence)


def test_a_stage_is_the_finding_of_another_rule_and_an_all_clear_is_none() -> None:
    assert looked("rank-holds-up", told(OTHER)) == []
    assert looked("rank-holds-up", told(NOBODY)) == []


def test_ranks_whose_phases_take_equally_long_are_compared_too(judged: Judged, steps: Steps) -> None:
    (suspected,) = judged("rank-holds-up", {"python.steps": steps(50)}, {"python.steps": steps(50)})

    assert suspected.certainty is Certainty.SUSPECTED


def test_one_rank_has_no_peers_and_few_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("rank-holds-up", {"python.steps": steps(50)})
    with pytest.raises(NoEvidence):
        judged("rank-holds-up", {"python.steps": steps(5)}, {"python.steps": steps(50)})
