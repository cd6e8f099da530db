"""The loss falls below zero and on."""

from __future__ import annotations

import math

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged, Steps


def test_a_loss_of_the_wrong_sign_is_named_from_its_beginning_and_from_the_middle(judged: Judged, steps: Steps) -> None:
    for begins in (0, 300):
        runs_away = steps(400, loss=lambda step, begins=begins: 2.0 - 0.01 * (begins + step) ** 2)

        (found,) = judged("loss-without-bound", {"python.steps": runs_away})

        assert found.sentence.startswith("the loss falls without bound: ")


def test_a_log_likelihood_that_levels_out_is_fine_and_so_is_one_near_zero(judged: Judged, steps: Steps) -> None:
    levels_out = steps(400, loss=lambda step: 9000 * math.exp(-step / 80) - 4000)
    at_last = steps(400, loss=lambda step: 100 * math.exp(-step / 300) - 4000)
    near_zero = steps(400, loss=lambda step: 1 - step**2 / 4000)
    turns = steps(400, loss=lambda step: -step * (400 - step))
    for fine in (levels_out, at_last, near_zero, turns):
        assert judged("loss-without-bound", {"python.steps": fine}) == []


def test_few_losses_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("loss-without-bound", {"python.steps": steps(20, loss=-1e6)})
