"""The data loader's workers compute all the time."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def workers(*busy: float) -> list[dict[str, object]]:
    each = busy if len(busy) > 1 else busy * 2
    return [
        {"worker_pid": 7 + at, "age": 10.0, "cpu_user": 10 * share, "cpu_system": 0.0} for at, share in enumerate(each)
    ]


def test_workers_that_compute_while_the_step_waits_are_named(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(100, data_wait=0.05), "python.workers": workers(0.95)}

    (found,) = judged("loader-workers-busy", tables)

    assert "2 workers compute 95 %" in found.sentence


def test_one_worker_is_no_plural(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(100, data_wait=0.05), "python.workers": workers(0.95)[:1]}

    (found,) = judged("loader-workers-busy", tables)

    assert found.sentence.startswith(
        "the data loader's one worker computes 95 % of the time, and the step waits for data"
    )


def test_workers_that_wait_for_a_cpu_would_compute(judged: Judged, steps: Steps) -> None:
    shared = [{**one, "run_delay": 5.0} for one in workers(0.4)]

    (found,) = judged("loader-workers-busy", {"python.steps": steps(100, data_wait=0.05), "python.workers": shared})

    assert "2 workers compute 90 %" in found.sentence


def test_one_worker_with_the_slow_samples_is_named(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(100, data_wait=0.05), "python.workers": workers(0.1, 0.9, 0.1)}

    (found,) = judged("loader-workers-busy", tables)

    assert "one of the data loader's 3 workers computes 90 % of the time, the others 10 %" in found.sentence
    assert "worker 8 computes, or waits for a CPU to, 90 %" in found.evidence[0]


def test_idle_workers_or_a_step_that_does_not_wait_are_fine(judged: Judged, steps: Steps) -> None:
    waits, goes = steps(100, data_wait=0.05), steps(100)

    assert judged("loader-workers-busy", {"python.steps": waits, "python.workers": workers(0.1)}) == []
    assert judged("loader-workers-busy", {"python.steps": goes, "python.workers": workers(0.95)}) == []


def test_without_workers_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("loader-workers-busy", {"python.steps": steps(100, data_wait=0.05)})
