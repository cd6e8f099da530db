"""Clipping that is always on, or missing."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def test_clipping_to_a_small_part_in_every_step_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("clipping", {"python.steps": steps(50, grad_norm=50.0, clip_norm=1.0)})

    assert found.where == "always"
    assert "1/50" in found.sentence


def test_a_policy_that_acts_between_updates_is_clipped_as_usual(judged: Judged, steps: Steps) -> None:
    def calls(samples: int) -> list[dict[str, object]]:
        call = {"module": "Agent", "stage": "forward", "step": 40}
        acts = [{**call, "phase": "eval", "input_shapes": f"{samples}x8"}] * 32
        return [*acts, {**call, "phase": "train", "input_shapes": "128x8"}]

    told = steps(50, grad_norm=50.0, clip_norm=1.0)

    assert judged("clipping", {"python.steps": told, "python.torch_trace": calls(4)}) == []
    assert len(judged("clipping", {"python.steps": told, "python.torch_trace": calls(128)})) == 1


def test_goals_that_another_model_gives_are_clipped_as_usual(judged: Judged, steps: Steps) -> None:
    def calls(every: int) -> list[dict[str, object]]:
        call = {"module": "QNet", "stage": "forward", "input_shapes": "32x4"}
        trained = [{**call, "phase": "train", "step": step} for step in range(50)]
        return [*trained, *({**call, "phase": "eval", "step": step} for step in range(0, 50, every))]

    told = steps(50, grad_norm=50.0, clip_norm=1.0)

    assert judged("clipping", {"python.steps": told, "python.torch_trace": calls(1)}) == []
    assert len(judged("clipping", {"python.steps": told, "python.torch_trace": calls(10)})) == 1


def noisy(step: int, after: float) -> float:
    return (1.0 if step <= 30 else after) + 0.1 * (step * 7 % 10)


@pytest.mark.parametrize(("after", "is_named"), [(3.0, True), (1.0, False), (0.5, False)])
def test_gradients_that_jump_unclipped_are_named_where_the_loss_is_higher_since(
    judged: Judged, steps: Steps, after: float, is_named: bool
) -> None:
    told = steps(50, grad_norm=lambda step: 500.0 if step == 30 else 1.0, loss=lambda step: noisy(step, after))

    found = judged("clipping", {"python.steps": told})

    assert [(one.where, one.since_step) for one in found] == ([("missing", 30)] if is_named else [])


def test_a_jump_whose_harm_is_not_seen_yet_is_not_named(judged: Judged, steps: Steps) -> None:
    def told(num: int) -> list[dict[str, object]]:
        return steps(num, grad_norm=lambda step: 500.0 if step == 30 else 1.0, loss=lambda step: noisy(step, 3.0))

    assert judged("clipping", {"python.steps": told(33)}) == []
    assert judged("clipping", {"python.steps": steps(50, grad_norm=lambda step: 500.0 if step == 30 else 1.0)}) == []


def test_usual_clipping_and_usual_norms_are_fine(judged: Judged, steps: Steps) -> None:
    assert judged("clipping", {"python.steps": steps(50, grad_norm=3.0, clip_norm=1.0)}) == []
    assert judged("clipping", {"python.steps": steps(50, grad_norm=lambda step: 1.0 + step % 5)}) == []


def test_without_norms_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("clipping", {"python.steps": steps(50)})
