"""The loss is flat, because the weights hardly move."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps

ADAM = [{"step": 0, "module": "Adam", "stage": "step"}]


def test_a_learning_rate_of_almost_nothing_is_named(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(200, loss=1.5, lr=1e-9), "python.torch_trace": ADAM}

    (found,) = judged("loss-flat", tables)

    assert "learning rate is 1e-09" in found.sentence


def test_sgd_with_gradients_of_almost_nothing_is_named(judged: Judged, steps: Steps) -> None:
    rows = steps(200, loss=1.5, lr=0.1, grad_norm=lambda step: 1e-9 if step % 20 == 0 else None)

    (found,) = judged("loss-flat", {"python.steps": rows, "python.torch_trace": [{**ADAM[0], "module": "SGD"}]})

    assert "norm of the gradients" in found.sentence


def test_a_job_that_has_converged_is_fine(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(200, loss=0.01, lr=1e-3), "python.torch_trace": ADAM}

    assert judged("loss-flat", tables) == []


def test_a_loss_of_which_nothing_is_left_may_be_flat(judged: Judged, steps: Steps) -> None:
    """Linear regression without noise, by SGD: what is left is the rounding of the weights."""
    rows = steps(150, loss=1.6e-13, lr=0.01, grad_norm=lambda step: 1.1e-6 if step % 10 == 0 else None)

    assert judged("loss-flat", {"python.steps": rows, "python.torch_trace": [{**ADAM[0], "module": "SGD"}]}) == []


def test_few_losses_and_rollouts_are_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("loss-flat", {"python.steps": steps(10, loss=1.0, lr=1e-9)})
    with pytest.raises(NoEvidence):
        judged("loss-flat", {"python.steps": steps(200, loss=float("nan"), lr=1e-9)})
    with pytest.raises(NotApplicable):
        judged("loss-flat", {"python.steps": steps(100, loss=1.0, lr=1e-9, rollout=3)})
