"""The loss jumps from step to step."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps


def test_a_loss_that_goes_up_and_down_in_turns_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("loss-volatile", {"python.steps": steps(100, loss=lambda step: 1.0 + 0.5 * (step % 2), lr=0.1)})

    assert "in turns" in found.sentence


def test_a_policy_that_acts_between_updates_has_such_a_loss(judged: Judged, steps: Steps) -> None:
    rows = steps(100, loss=lambda step: 1.0 + 0.5 * (step % 2), lr=0.1)
    call = {"module": "Agent", "stage": "forward", "step": 40}
    acts = [{**call, "phase": "eval", "input_shapes": "4x8"}] * 32
    trained = {**call, "phase": "train", "input_shapes": "128x8"}

    with pytest.raises(NotApplicable):
        judged("loss-volatile", {"python.steps": rows, "python.torch_trace": [*acts, trained]})


def test_a_policy_for_which_other_ranks_act_has_such_a_loss(judged: Judged, steps: Steps) -> None:
    learns = {"python.steps": steps(100, loss=lambda step: 1.0 + 0.5 * (step % 2), lr=0.1)}

    assert judged("loss-volatile", learns, learns)
    with pytest.raises(NotApplicable):
        judged("loss-volatile", learns, {"python.steps": steps(100, backward=None)})


@pytest.mark.parametrize("first", [1.0, 3e-6])
def test_of_a_loss_of_which_nothing_is_left_turns_are_none(judged: Judged, steps: Steps, first: float) -> None:
    """Adam goes to and fro around the weights that make it 0, though it came there before the recorder, too."""
    rows = steps(
        300, loss=lambda step: first if step < 100 else 1e-7 * (1.0 + 0.5 * (step % 2)), lr=1e-3, counted=False
    )

    assert judged("loss-volatile", {"python.steps": rows}) == []


def test_a_loss_of_large_batches_that_scatters_is_named(judged: Judged, steps: Steps) -> None:
    chance = random.Random(1)
    rows = steps(100, loss=lambda step: chance.lognormvariate(0.0, 0.8), batch_size=256)

    (found,) = judged("loss-volatile", {"python.steps": rows})

    assert found.sentence.startswith("the loss is volatile")


def test_batches_of_four_scatter_by_themselves(judged: Judged, steps: Steps) -> None:
    chance = random.Random(1)
    rows = steps(100, loss=lambda step: chance.gammavariate(2.0, 0.5), batch_size=4)

    assert judged("loss-volatile", {"python.steps": rows}) == []


def test_a_steep_fall_is_none(judged: Judged, steps: Steps) -> None:
    assert judged("loss-volatile", {"python.steps": steps(100, loss=lambda step: 0.9**step, batch_size=64)}) == []


def test_a_loss_that_comes_and_goes_in_waves_is_named(judged: Judged, steps: Steps) -> None:
    waves = steps(100, loss=lambda step: 0.05 * (1.0 + 0.9 * math.sin(step / 6)), batch_size=192)
    chance = random.Random(2)
    curved = steps(100, loss=lambda step: (0.02 + 0.93**step) * chance.gauss(1.0, 0.05), batch_size=192)

    high = [{**row, "loss": 9.0} for row in steps(40, batch_size=192)]
    converged = [*high, *({**row, "step": 40 + at} for at, row in enumerate(waves))]

    (found,) = judged("loss-volatile", {"python.steps": waves})

    assert judged("loss-volatile", {"python.steps": converged}) == []
    assert found.sentence.startswith("the loss comes and goes in waves of ")
    assert judged("loss-volatile", {"python.steps": curved}) == []
    assert judged("loss-volatile", {"python.steps": [{**row, "batch_size": 8} for row in waves]}) == []


@pytest.mark.parametrize("seed", [6, 7])  # where chance puts the medians of five far apart
def test_losses_near_zero_scatter_over_powers_of_ten_and_make_no_waves(judged: Judged, steps: Steps, seed: int) -> None:
    chance = random.Random(seed)
    scattered = steps(100, loss=lambda step: math.exp(chance.gauss(-5.0, 2.6)), batch_size=16)

    assert judged("loss-volatile", {"python.steps": scattered}) == []


def test_what_is_left_of_a_small_loss_is_not_known_if_its_beginning_was_not_seen(judged: Judged, steps: Steps) -> None:
    chance = random.Random(1)
    small = steps(100, loss=lambda step: 0.02 * math.exp(chance.gauss(0.0, 1.5)), batch_size=256)

    assert judged("loss-volatile", {"python.steps": small})
    assert judged("loss-volatile", {"python.steps": [{**row, "step": row["step"] + 500} for row in small]}) == []
    assert judged("loss-volatile", {"python.steps": [{**row, "counted": False} for row in small]}) == []


def test_few_losses_and_rewards_of_both_signs_are_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence, match="10 losses"):
        judged("loss-volatile", {"python.steps": steps(10, loss=1.0)})
    with pytest.raises(NotApplicable):
        judged("loss-volatile", {"python.steps": steps(100, loss=lambda step: (-1.0) ** step)})


def test_jumps_of_a_loss_that_is_nearly_gone_matter_to_nobody(judged: Judged, steps: Steps) -> None:
    def gone(last: float) -> dict[str, Any]:
        def loss(step: int) -> float:
            return 1.0 if step < 40 else last * (1 + 0.9 * (step * 7919 % 13) / 6)

        return {"python.steps": steps(300, loss=loss, batch_size=512)}

    assert judged("loss-volatile", gone(0.5))
    assert judged("loss-volatile", gone(0.001)) == []
