"""The loss rises after it had fallen."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged, Steps


def test_a_loss_that_turns_is_named_with_the_step(judged: Judged, steps: Steps) -> None:
    turned = steps(200, loss=lambda step: 2 - step / 100 if step < 100 else step / 100, lr=0.1)

    (found,) = judged("loss-rises", {"python.steps": turned})

    assert 90 <= (found.since_step or 0) <= 120


def test_a_loss_that_falls_or_scatters_is_fine(judged: Judged, steps: Steps) -> None:
    assert judged("loss-rises", {"python.steps": steps(200, loss=lambda step: 2 / (step + 1))}) == []
    assert judged("loss-rises", {"python.steps": steps(200, loss=lambda step: 1 + (step * 7919 % 13) / 13)}) == []


def test_few_losses_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("loss-rises", {"python.steps": steps(20, loss=1.0)})
