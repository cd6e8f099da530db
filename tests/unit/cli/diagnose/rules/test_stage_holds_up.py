"""All ranks of a pipeline stage are slow together."""

from __future__ import annotations

import pytest

from probe_cli.cluster.compare.comparison import Comparison, Verdict
from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable

from .conftest import Judged, Steps
from .looking import Told, looked

NAMED = Verdict(
    "stands out",
    "stage 1 (ranks 2-3) holds the job up",
    ranks=(2, 3),
    kind="stage",
    where="forward",
    share=0.4,
    num_steps=100,
    step=0.1,
)
OTHER = Verdict("stands out", "rank 1 holds the job up", ranks=(1,), kind="rank", share=0.4)
NOBODY = Verdict("nobody", "no rank holds the job up")


def told(verdict: Verdict) -> Told:
    return Told(4, comparison=Comparison(verdict, (), (), ()))


def test_what_the_comparison_names_is_told(judged: Judged, steps: Steps) -> None:
    fast, slow = {"python.steps": steps(50)}, {"python.steps": steps(50, data_wait=0.05, backward=0.001)}

    (suspected,) = judged("stage-holds-up", fast, slow)
    (found,) = looked("stage-holds-up", told(NAMED), [suspected])

    assert suspected.certainty is Certainty.SUSPECTED
    assert (found.ranks, found.where) == ((2, 3), "forward")


def test_a_single_rank_is_the_finding_of_another_rule_and_an_all_clear_is_none() -> None:
    assert looked("stage-holds-up", told(OTHER)) == []
    assert looked("stage-holds-up", told(NOBODY)) == []


def test_ranks_whose_phases_take_equally_long_are_compared_too(judged: Judged, steps: Steps) -> None:
    (suspected,) = judged("stage-holds-up", {"python.steps": steps(50)}, {"python.steps": steps(50)})

    assert suspected.certainty is Certainty.SUSPECTED


def test_one_rank_has_no_peers_and_few_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("stage-holds-up", {"python.steps": steps(50)})
    with pytest.raises(NoEvidence):
        judged("stage-holds-up", {"python.steps": steps(5)}, {"python.steps": steps(50)})
