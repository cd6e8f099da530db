"""No step has ended for a long time."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged, Steps


def test_a_job_whose_last_step_is_long_ago_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("stalled", {"python.steps": steps(50)})  # they ended in the past

    assert found.since_step == 49


def test_a_step_that_has_just_ended_is_fine(judged: Judged, steps: Steps) -> None:
    assert judged("stalled", {"python.steps": steps(50)}, seconds=1e12) == []


def test_before_the_first_step_there_is_no_evidence(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("stalled", {})
