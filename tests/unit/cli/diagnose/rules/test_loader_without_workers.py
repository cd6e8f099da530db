"""Batches are made on the training thread."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps

LOADER = {"loader": "DataLoader", "place": "loader", "dataset": "Slow", "batch_size": 8}


def test_a_loader_without_workers_is_named_where_the_step_waits(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(100, data_wait=0.05), "torch.dataloaders": [{**LOADER, "num_workers": 0}]}

    (found,) = judged("loader-without-workers", tables)

    assert found.where == "loader"


def test_workers_or_a_short_wait_are_fine(judged: Judged, steps: Steps) -> None:
    slow, quick = steps(100, data_wait=0.05), steps(100)

    assert (
        judged("loader-without-workers", {"python.steps": slow, "torch.dataloaders": [{**LOADER, "num_workers": 2}]})
        == []
    )
    assert (
        judged("loader-without-workers", {"python.steps": quick, "torch.dataloaders": [{**LOADER, "num_workers": 0}]})
        == []
    )


def test_a_data_set_in_memory_needs_no_workers(judged: Judged, steps: Steps) -> None:
    quick = steps(100, duration=0.004, data_wait=0.001)
    tables = {"python.steps": quick, "torch.dataloaders": [{**LOADER, "num_workers": 0}]}

    assert judged("loader-without-workers", tables) == []


@pytest.mark.parametrize(("duration", "data_wait", "delay"), [(0.012, 0.003, 0.6), (0.1, 0.015, 0.1)])
def test_a_busy_host_makes_no_slow_data_set(
    judged: Judged, steps: Steps, duration: float, data_wait: float, delay: float
) -> None:
    tables = {
        "python.steps": steps(100, duration=duration, data_wait=data_wait),
        "torch.dataloaders": [{**LOADER, "num_workers": 0}],
    }
    busy = [{"ts": "2026-11-20 12:00:00", "period": 1.0, "run_delay": delay}]

    assert judged("loader-without-workers", tables)
    assert judged("loader-without-workers", {**tables, "process.samples": busy}) == []


def test_without_a_loader_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("loader-without-workers", {"python.steps": steps(100, data_wait=0.05)})


def test_the_first_steps_tell_too_little(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence, match="5 steps recorded, 20 needed"):
        judged(
            "loader-without-workers",
            {"python.steps": steps(5, data_wait=0.05), "torch.dataloaders": [{**LOADER, "num_workers": 0}]},
        )
