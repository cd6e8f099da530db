"""The job hangs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe_cli.cluster.hang.doing import Activity, Doing
from probe_cli.cluster.hang.verdict import State, Verdict
from probe_cli.diagnose.finding import Certainty, NotApplicable

from .conftest import Judged, Steps
from .looking import Told, looked

HANGS = Verdict(
    State.HANGS, "the job hangs: rank 1 has not come to all_reduce 7", ranks=(1,), cause="absent", stands_s=30.0,
    aborts_in_s=570.0,
)  # fmt: skip


def test_a_job_without_a_step_for_long_is_suspected_and_the_verdict_names_the_rank(
    judged: Judged, steps: Steps
) -> None:
    ended = {"python.steps": steps(50)}  # long ago

    (suspected,) = judged("job-hangs", ended, ended)
    (found,) = looked("job-hangs", Told(verdict_of_hang=HANGS), [suspected])

    assert suspected.certainty is Certainty.SUSPECTED
    assert (found.certainty, found.ranks, found.since_step) == (Certainty.CERTAIN, (1,), 49)
    assert "has not come to all_reduce 7" in found.sentence
    assert any("570 s" in text for text in found.evidence)
    assert any("rank == 0" in text for text in found.advice)


def test_a_job_that_gets_on_is_not_looked_at(judged: Judged, steps: Steps) -> None:
    ended = {"python.steps": steps(50)}

    assert judged("job-hangs", ended, ended, seconds=1e12) == []


def test_a_job_that_works_or_has_not_begun_is_not_called_hung() -> None:
    slow = Verdict(State.SLOW, "no hang so far: rank 0 saves", ranks=(0,), cause="absent")
    meets = Verdict(State.HANGS, "the job hangs: rank 1 has not come", ranks=(1,), cause="init")

    assert looked("job-hangs", Told(verdict_of_hang=slow)) == []
    assert looked("job-hangs", Told(verdict_of_hang=meets)) == []


def test_a_rank_that_may_be_at_work_is_told_once_it_has_lasted(judged: Judged, steps: Steps) -> None:
    ended = {"python.steps": steps(50)}
    suspected = judged("job-hangs", ended, ended)
    waits = Verdict(
        State.SLOW,
        "no hang so far: rank 0 waits for data",
        ranks=(0,),
        stands_s=25.0,
        may_go_on="rank 0 waits for data",
    )

    (found,) = looked("job-hangs", Told(verdict_of_hang=waits), suspected)

    assert (found.certainty, found.ranks) == (Certainty.POSSIBLE, (0,))
    assert found.sentence == "no step has ended for 25 s, and the job may hang: rank 0 waits for data"
    assert looked("job-hangs", Told(verdict_of_hang=replace(waits, stands_s=15.0)), suspected) == []


def test_a_rank_that_runs_while_the_others_wait_is_no_hang_yet(judged: Judged, steps: Steps) -> None:
    ended = {"python.steps": steps(50)}
    suspected = judged("job-hangs", ended, ended)
    sleeps, runs = (
        Verdict(
            State.SLOW, "no hang so far: rank 0 has not come", ranks=(0,), cause="absent", stands_s=40.0,
            may_go_on="rank 0 has not come",
            doing={0: Doing(Activity.PYTHON, kernel=kernel), 1: Doing(Activity.COLLECTIVE, kernel="sleeping")},
        )
        for kernel in ("sleeping", "running")
    )  # fmt: skip

    assert looked("job-hangs", Told(verdict_of_hang=runs), suspected) == []
    assert looked("job-hangs", Told(verdict_of_hang=sleeps), suspected)


def test_one_process_without_a_step_is_judged_if_it_did_not_run_before_the_recorder_came(judged: Judged) -> None:
    suspected = judged("job-hangs", {})
    awake, asleep = Told(1, verdict_of_hang=HANGS), Told(1, verdict_of_hang=HANGS)
    asleep.targets = {at: replace(target, asleep={"100": 400.0}) for at, target in asleep.targets.items()}
    awake.targets = {at: replace(target, asleep={"101": 400.0}) for at, target in awake.targets.items()}

    with pytest.raises(NotApplicable):
        looked("job-hangs", awake, suspected)
    assert [one.sentence for one in looked("job-hangs", asleep, suspected)] == [HANGS.sentence]
