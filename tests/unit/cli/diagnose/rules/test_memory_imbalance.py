"""Memory that differs between ranks."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps, Tables


def on_device(steps: Steps, peak: float) -> Tables:
    return {"python.steps": steps(20, peak_allocated=peak, reserved=peak, rss=900.0)}


def test_a_rank_with_a_higher_peak_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged(
        "memory-imbalance", *(on_device(steps, peak) for peak in (40_000.0, 40_000.0, 60_000.0, 40_000.0))
    )

    assert found.ranks == (2,)
    assert "device memory" in found.sentence


def test_ranks_on_cpus_are_compared_by_resident_memory(judged: Judged, steps: Steps) -> None:
    (found,) = judged("memory-imbalance", *({"python.steps": steps(20, rss=rss)} for rss in (3000.0, 800.0)))

    assert found.ranks == (0,)


def test_about_the_same_is_fine(judged: Judged, steps: Steps) -> None:
    assert judged("memory-imbalance", *(on_device(steps, peak) for peak in (40_000.0, 42_000.0))) == []
    assert judged("memory-imbalance", *({"python.steps": steps(20, rss=rss)} for rss in (500.0, 400.0))) == []


def test_one_rank_or_one_answer_is_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("memory-imbalance", on_device(steps, 1.0))
    with pytest.raises(NoEvidence):
        judged("memory-imbalance", on_device(steps, 1.0), {}, world_size=2)
