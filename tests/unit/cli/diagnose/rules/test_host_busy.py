"""The ranks wait for each other because the host is busy."""

from __future__ import annotations

import pytest

from probe_cli.cluster.compare.comparison import Comparison, Verdict
from probe_cli.diagnose.finding import Certainty, NotApplicable
from probe_cli.diagnose.rules import rules

from .conftest import Judged, Steps
from .looking import Told, looked

BUSY = Verdict("busy host", "the host is busy: ranks 0-1 wait for a CPU 31 % of the time", share=0.2, num_steps=100)


def told(verdict: Verdict) -> Told:
    return Told(4, comparison=Comparison(verdict, (), (), ()))


def test_a_busy_host_is_told_and_weighs_less_than_what_is_wrong_with_the_job() -> None:
    (found,) = looked("host-busy", told(BUSY))

    assert found.sentence == BUSY.sentence
    assert (found.certainty, found.share, found.ranks) == (Certainty.POSSIBLE, 0.0, ())
    assert looked("waits-rotate", told(BUSY)) == []
    assert "host-busy" in rules()["processor-contended"].explains


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict("busy host", "the host is busy", share=0.06),
        Verdict("rotates", "ranks wait now for one and now for another", share=0.3),
        Verdict("nobody", "no rank holds the job up"),
    ],
)
def test_little_cost_and_other_verdicts_are_not_the_hosts(verdict: Verdict) -> None:
    assert looked("host-busy", told(verdict)) == []


def test_one_rank_has_no_peers(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("host-busy", {"python.steps": steps(50)})
