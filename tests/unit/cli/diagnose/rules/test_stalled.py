"""No step has ended for a long time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe_cli.diagnose.finding import Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.endpoint import LocalProcess, Report

from .conftest import Judged, Steps
from .looking import TARGET, looked


def test_a_job_whose_last_step_is_long_ago_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("stalled", {"python.steps": steps(50)})  # they ended in the past

    assert found.since_step == 49


def test_a_step_that_has_just_ended_is_fine(judged: Judged, steps: Steps) -> None:
    assert judged("stalled", {"python.steps": steps(50)}, seconds=1e12) == []


def test_before_the_first_step_there_is_no_evidence(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("stalled", {})


def test_a_rank_that_has_ended_has_not_stalled_and_in_a_report_nothing_moves() -> None:
    found = [Finding("no step has ended for 90 s", ranks=(0,))]

    assert looked("stalled", Job({LocalProcess(100): TARGET}, 1.0), found) == found
    assert looked("stalled", Job({LocalProcess(100): replace(TARGET, alive=False)}, 1.0), found) == []
    with pytest.raises(NotApplicable):
        looked("stalled", Job({Report("job.tar"): TARGET}, 1.0), found)
