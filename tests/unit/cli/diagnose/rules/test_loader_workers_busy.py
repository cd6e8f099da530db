"""The data loader's workers compute all the time."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def workers(busy: float) -> list[dict[str, object]]:
    return [{"worker_pid": pid, "age": 10.0, "cpu_user": 10 * busy, "cpu_system": 0.0} for pid in (7, 8)]


def test_workers_that_compute_while_the_step_waits_are_named(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(100, data_wait=0.05), "python.workers": workers(0.95)}

    (found,) = judged("loader-workers-busy", tables)

    assert "2 workers compute 95 %" in found.sentence


def test_idle_workers_or_a_step_that_does_not_wait_are_fine(judged: Judged, steps: Steps) -> None:
    waits, goes = steps(100, data_wait=0.05), steps(100)

    assert judged("loader-workers-busy", {"python.steps": waits, "python.workers": workers(0.1)}) == []
    assert judged("loader-workers-busy", {"python.steps": goes, "python.workers": workers(0.95)}) == []


def test_without_workers_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("loader-workers-busy", {"python.steps": steps(100, data_wait=0.05)})
