"""Optimizers that step after their gradients were cleared."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def optimizer(early: int, groups: int = 1, parts: int = 0) -> dict[str, Any]:
    row = {"optimizer": "AdamW", "place": "global `optimizer`", "cleared_early": early, "cleared_parts": parts}
    return {"torch.optimizers": [{**row, "param_group": at} for at in range(groups)]}


def test_an_optimizer_that_steps_without_its_gradients_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("gradients-cleared-early", optimizer(190, groups=2) | {"python.steps": steps(200)})

    assert found.where == "global `optimizer`"
    assert found.evidence == ("zero_grad came after the last backward in 190 of 200 steps",)


@pytest.mark.parametrize("early", [0, 19, 40])
def test_none_and_a_few_are_fine(judged: Judged, steps: Steps, early: int) -> None:
    assert judged("gradients-cleared-early", optimizer(early) | {"python.steps": steps(200)}) == []


def test_accumulation_that_keeps_the_last_batch_alone_is_named(judged: Judged, steps: Steps) -> None:
    recorded = {"python.steps": steps(200, loss=1.0, micro_batches=8)}
    (found,) = judged("gradients-cleared-early", optimizer(0, groups=2, parts=1400) | recorded)

    assert found.sentence == "AdamW accumulates nothing: gradients of all but the last of 8 batches are cleared"
    assert judged("gradients-cleared-early", optimizer(0, parts=60) | recorded) == []
    one, other = optimizer(0, parts=1400)["torch.optimizers"], optimizer(0, parts=1400)["torch.optimizers"]
    two = {"torch.optimizers": [*one, {**other[0], "place": "global `optimizer_d`"}]}
    assert judged("gradients-cleared-early", two | recorded) == [], "one of two may clear what the other has made"


def test_a_job_without_an_optimizer_is_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("gradients-cleared-early", {"python.steps": steps(200)})
