"""The step waits for data."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged, Steps


def test_a_step_that_waits_half_of_its_time_is_named_with_its_cost(judged: Judged, steps: Steps) -> None:
    (found,) = judged("data-bound", {"python.steps": steps(100, data_wait=0.05)})

    assert found.share == pytest.approx(0.5)
    assert found.cost_s == pytest.approx(0.05)


def test_a_short_wait_is_none(judged: Judged, steps: Steps) -> None:
    assert judged("data-bound", {"python.steps": steps(100, data_wait=0.005)}) == []
    assert judged("data-bound", {"python.steps": steps(100, data_wait=0.005)}, share=0.02)


def test_what_handing_a_batch_over_takes_is_none(judged: Judged, steps: Steps) -> None:
    assert judged("data-bound", {"python.steps": steps(100, duration=0.004, data_wait=0.001)}) == []


def test_the_start_of_the_workers_is_none_and_one_an_epoch_is(judged: Judged, steps: Steps) -> None:
    def starts(every: int) -> list[dict[str, object]]:
        return steps(100, data_wait=lambda step: 3.0 if step % every == 0 else 0.0)

    assert judged("data-bound", {"python.steps": starts(100)}) == []
    assert judged("data-bound", {"python.steps": starts(25)})


@pytest.mark.parametrize(("data_wait", "is_named"), [(0.015, False), (0.05, True)])
def test_waiting_for_a_core_is_not_waiting_for_data(
    judged: Judged, steps: Steps, data_wait: float, is_named: bool
) -> None:
    busy = [{"run_delay": 0.3, "period": 1.0}] * 30

    found = judged("data-bound", {"python.steps": steps(100, data_wait=data_wait), "process.samples": busy})

    assert bool(found) is is_named


@pytest.mark.parametrize(("run_delay", "is_named"), [(0.5, True), (4.2, False), (None, True)])
def test_a_batch_that_is_late_since_workers_wait_for_a_core_is_not_named(
    judged: Judged, steps: Steps, run_delay: float | None, is_named: bool
) -> None:
    workers = [{"worker_pid": pid, "age": 10.0, "cpu_user": 1.0, "run_delay": run_delay} for pid in (1, 2)]

    found = judged("data-bound", {"python.steps": steps(100, data_wait=0.05), "python.workers": workers})

    assert bool(found) is is_named


def test_workers_are_not_judged_where_tasks_wait_for_a_core_all_the_time(judged: Judged, steps: Steps) -> None:
    def told(pressure: float, children: int) -> dict[str, object]:
        return {
            "python.steps": steps(600, data_wait=0.05),
            "process.samples": [{"num_children": children}] * 30,
            "host.pressure": [
                {"ts": f"2026-01-01 00:00:{at:02}", "scope": "host", "cpu_some": pressure} for at in range(0, 60, 5)
            ],
        }

    assert judged("data-bound", told(0.6, 2))
    assert judged("data-bound", told(0.97, 0))
    with pytest.raises(NoEvidence):
        judged("data-bound", told(0.97, 2))


def test_few_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("data-bound", {"python.steps": steps(3, data_wait=0.05)})
