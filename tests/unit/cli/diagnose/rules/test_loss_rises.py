"""The loss rises after it had fallen."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps


def test_a_loss_that_turns_is_named_with_the_step(judged: Judged, steps: Steps) -> None:
    turned = steps(200, loss=lambda step: 2 - step / 100 if step < 100 else step / 100, lr=0.1)

    (found,) = judged("loss-rises", {"python.steps": turned})

    assert 90 <= (found.since_step or 0) <= 120
    assert "learning rate" not in found.sentence


def test_a_learning_rate_that_was_raised_is_told_with_it(judged: Judged, steps: Steps) -> None:
    def loss(step: int) -> float:
        return 2 - step / 100 if step < 100 else step / 20 - 4

    raised = steps(200, loss=loss, lr=lambda step: 0.01 if step < 100 else 0.3)

    (found,) = judged("loss-rises", {"python.steps": raised})

    assert "the learning rate rose from 0.01 to 0.3" in found.sentence


def test_a_loss_that_falls_or_scatters_is_fine(judged: Judged, steps: Steps) -> None:
    assert judged("loss-rises", {"python.steps": steps(200, loss=lambda step: 2 / (step + 1))}) == []
    assert judged("loss-rises", {"python.steps": steps(200, loss=lambda step: 1 + (step * 7919 % 13) / 13)}) == []


@pytest.mark.parametrize("end", [0.0, 1e-6])
def test_a_loss_that_has_come_to_its_end_may_stay_at_zero_or_double(judged: Judged, steps: Steps, end: float) -> None:
    settled = steps(400, loss=lambda step: max(2 - step / 50, end * (1 + (step > 300))))

    assert judged("loss-rises", {"python.steps": settled}) == []


def test_what_was_nearly_gone_when_the_recorder_came_may_rise(judged: Judged, steps: Steps) -> None:
    """Linear regression without noise, by Adam: 1e-4 becomes 1e-3 for a while."""
    rises = steps(150, loss=lambda step: 1e-4 if step < 120 else 1e-3, counted=False)
    grows = steps(150, loss=lambda step: 0.1 if step < 120 else 1.0, counted=False)

    assert judged("loss-rises", {"python.steps": rises}) == []
    assert judged("loss-rises", {"python.steps": grows})


def test_few_losses_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("loss-rises", {"python.steps": steps(20, loss=1.0)})


def test_losses_of_rollouts_of_both_signs_and_of_several_optimizers_are_not_judged(
    judged: Judged, steps: Steps
) -> None:
    def turns(step: int) -> float:
        return 2 - step / 100 if step < 100 else step / 100

    both = {"python.torch_trace": [{"module": name, "stage": "step", "step": 1} for name in ("Adam", "Adam#2")]}
    for tables in (
        {"python.steps": steps(200, loss=turns, rollout=3)},
        {"python.steps": steps(200, loss=lambda step: turns(step) - 1.5)},
        {"python.steps": steps(200, loss=turns), **both},
    ):
        with pytest.raises(NotApplicable):
            judged("loss-rises", tables)
