"""The loss spikes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable

from .conftest import Judged, Steps


def test_several_steps_far_above_the_others_are_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("loss-spikes", {"python.steps": steps(300, loss=lambda s: 50.0 if s in (100, 200) else 1.0)})

    assert "2 times in 300 steps" in found.sentence
    assert found.certainty is Certainty.POSSIBLE
    assert found.since_step == 100


def test_one_is_chance_and_scatter_of_single_samples_is_none(judged: Judged, steps: Steps) -> None:
    chance = random.Random(1)

    assert judged("loss-spikes", {"python.steps": steps(300, loss=lambda s: 50.0 if s == 100 else 1.0)}) == []
    assert judged("loss-spikes", {"python.steps": steps(500, loss=lambda s: chance.gauss(0.0, 1.0) ** 2)}) == []


def test_the_highest_of_losses_that_scatter_widely_are_none(judged: Judged, steps: Steps) -> None:
    high = {100: 50.0, 200: 50.0}
    scattered = {**high, 120: 3.0, 150: 4.0, 180: 5.0}

    assert judged("loss-spikes", {"python.steps": steps(300, loss=lambda s: high.get(s, 1.0))})
    assert judged("loss-spikes", {"python.steps": steps(300, loss=lambda s: scattered.get(s, 1.0))}) == []


def test_spikes_of_small_batches_are_higher(judged: Judged, steps: Steps) -> None:
    high = steps(300, loss=lambda s: 12.0 if s in (100, 200) else 1.0, batch_size=4)
    higher = steps(300, loss=lambda s: 50.0 if s in (100, 200) else 1.0, batch_size=4)

    assert judged("loss-spikes", {"python.steps": high}) == []
    assert judged("loss-spikes", {"python.steps": [{**row, "batch_size": 32} for row in high]})
    assert judged("loss-spikes", {"python.steps": higher})


def test_the_high_losses_of_the_start_are_none(judged: Judged, steps: Steps) -> None:
    assert judged("loss-spikes", {"python.steps": steps(300, loss=lambda step: 100 * 0.97**step)}) == []


def test_spikes_far_below_the_losses_at_first_are_none(judged: Judged, steps: Steps) -> None:
    def converged(step: int) -> float:
        return 1.0 if step < 40 else 1e-2 if step in (150, 250) else 1e-4

    assert judged("loss-spikes", {"python.steps": steps(300, loss=converged)}) == []


def test_spikes_where_hardly_any_loss_is_left_are_none(judged: Judged, steps: Steps) -> None:
    left = steps(300, loss=lambda s: 5e-4 if s in (100, 200) else 1e-5)

    assert judged("loss-spikes", {"python.steps": left}) == []


def test_spikes_of_a_small_loss_are_none_if_its_beginning_was_not_seen(judged: Judged, steps: Steps) -> None:
    small = steps(300, loss=lambda step: 0.03 if step in (60, 120, 180, 240) else 1e-3)

    assert judged("loss-spikes", {"python.steps": small})
    assert judged("loss-spikes", {"python.steps": [{**row, "counted": False} for row in small]}) == []
    assert judged("loss-spikes", {"python.steps": [{**row, "step": row["step"] + 500} for row in small]}) == []


def test_a_few_spikes_of_a_loss_that_had_settled_before_the_attach_are_none(judged: Judged, steps: Steps) -> None:
    def late(*at: int, loss: float = 1.2) -> list[dict[str, Any]]:
        settled = steps(300, loss=lambda step: loss if step in at else 0.05)
        return [{**row, "counted": False} for row in settled]

    assert judged("loss-spikes", {"python.steps": late(60, 120, 180)}) == []
    assert judged("loss-spikes", {"python.steps": late(60, 120, 180, 240, loss=0.9)}) == []
    assert judged("loss-spikes", {"python.steps": late(60, 120, 180, 240)})


def test_losses_of_many_models_one_after_another_are_not_compared(judged: Judged, steps: Steps) -> None:
    clients = [{"step": at, "module": f"Net#{at}", "stage": "forward", "duration": 0.1} for at in range(2, 6)]
    tables = {
        "python.steps": steps(300, loss=lambda s: 50.0 if s in (100, 200) else 1.0),
        "python.torch_trace": clients,
    }

    with pytest.raises(NotApplicable):
        judged("loss-spikes", tables)


def test_few_losses_are_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence, match="20 losses"):
        judged("loss-spikes", {"python.steps": steps(20, loss=1.0)})
