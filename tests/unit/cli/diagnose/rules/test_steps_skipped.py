"""The loop goes on, and the optimizer does not step."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence

from .conftest import Judged, Steps


def under_way(**columns: Any) -> list[dict[str, Any]]:
    return [{"number": 300, "age": 30.0, "micro_batches": 2000, **columns}]


def test_a_guard_that_drops_every_batch_is_named(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(300, micro_batches=1), "python.current_step": under_way()}

    (found,) = judged("steps-skipped", tables)

    assert found.sentence == "the optimizer has not stepped for 30 s, while backward was called 2,000 times"
    assert found.since_step == 300


MODEL = {"module": "Net", "class": "Net", "depth": 0, "trainable": 15, "training": True, "place": "model"}
NO_BACKWARD = {"micro_batches": 0, "modules": 29.0}


@pytest.mark.parametrize(("age", "certainty"), [(15.0, Certainty.POSSIBLE), (40.0, Certainty.LIKELY)])
def test_a_guard_against_losses_that_drops_every_batch_is_named(
    judged: Judged, steps: Steps, age: float, certainty: Certainty
) -> None:
    tables = {
        "python.steps": steps(300, micro_batches=1, forward=0.02),
        "python.current_step": under_way(**NO_BACKWARD, age=age),
        "torch.modules": [MODEL],
    }

    (found,) = judged("steps-skipped", tables)

    assert found.sentence.endswith("while the model ran for 29 s and no backward followed")
    assert found.certainty is certainty


def test_a_validation_with_gradients_and_a_rollout_as_before_are_fine(judged: Judged, steps: Steps) -> None:
    usual, rollouts = steps(300, micro_batches=1, forward=0.02), steps(300, micro_batches=1, forward=5.0)
    now = under_way(**NO_BACKWARD)

    for told, model in ((usual, {**MODEL, "training": False}), (rollouts, MODEL)):
        assert (
            judged("steps-skipped", {"python.steps": told, "python.current_step": now, "torch.modules": [model]}) == []
        )
    short = {"python.steps": usual, "python.current_step": under_way(**NO_BACKWARD, age=8.0), "torch.modules": [MODEL]}
    assert judged("steps-skipped", short) == []


def test_accumulation_and_a_long_step_are_fine(judged: Judged, steps: Steps) -> None:
    accumulates = {"python.steps": steps(300, micro_batches=512), "python.current_step": under_way()}
    evaluates = {"python.steps": steps(300, micro_batches=1), "python.current_step": under_way(micro_batches=1)}
    begins = {"python.steps": steps(300, micro_batches=1), "python.current_step": under_way(micro_batches=20, age=0.1)}
    for fine in (accumulates, evaluates, begins):
        assert judged("steps-skipped", fine) == []


def test_without_a_step_there_is_nothing_to_compare_with(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("steps-skipped", {"python.current_step": under_way()})
