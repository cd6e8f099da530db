"""Python's garbage collector stops the training."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged, Steps


def pauses(steps: Steps, length: float) -> list[dict[str, object]]:
    return [
        {"step": row["step"], "ts": row["ts"], "duration": length, "collected": 5, "generation": 2}
        for row in steps(100)
    ]


def test_pauses_of_a_fifth_of_the_time_are_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("collector-pauses", {"python.steps": steps(100), "python.gc": pauses(steps, 0.02)})

    assert found.share == pytest.approx(0.2)
    assert "100 collections in 100 steps" in found.evidence[0]


def test_short_pauses_and_none_are_fine(judged: Judged, steps: Steps) -> None:
    assert judged("collector-pauses", {"python.steps": steps(100), "python.gc": pauses(steps, 0.0001)}) == []
    assert judged("collector-pauses", {"python.steps": steps(100)}) == []


def test_one_long_collection_does_not_tell_how_often_it_comes(judged: Judged, steps: Steps) -> None:
    rows = steps(100)
    long = {"step": rows[50]["step"], "ts": rows[50]["ts"], "duration": 3.0, "collected": 0, "generation": 2}

    assert judged("collector-pauses", {"python.steps": rows, "python.gc": [*pauses(steps, 0.0001), long]}) == []


def test_without_steps_there_is_no_evidence(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("collector-pauses", {})
