"""Activations that are dead."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps
from .looking import Told, looked


def gradients(*zeros: int) -> list[dict[str, Any]]:
    """Of a weight of 100 elements and a bias of 10 in each layer, so many are 0."""
    counts = iter(zeros)
    return [
        {
            "place": 2 * at + (name == "bias"),
            "module": f"Net.{at}",
            "parameter": name,
            "values": size,
            "zeros": next(counts),
        }
        for at in range(len(zeros) // 2)
        for name, size in (("weight", 100), ("bias", 10))
    ]


def test_the_layer_whose_input_is_all_zero_is_named(judged: Judged, steps: Steps) -> None:
    last, middle = (
        {"python.steps": steps(50), "torch.gradients": gradients(*zeros)}
        for zeros in ((100, 10, 100, 10, 100, 0), (100, 10, 100, 2, 7, 0))
    )

    (at_last,), (in_the_middle,) = judged("activations-dead", last), judged("activations-dead", middle)

    assert (at_last.where, in_the_middle.where) == ("Net.2", "Net.1")
    assert "its input is all 0" in at_last.sentence


def test_a_last_layer_with_one_output_is_named_too(judged: Judged, steps: Steps) -> None:
    rows = gradients(100, 10, 100, 0)
    rows[-1]["values"] = 1

    (found,) = judged("activations-dead", {"python.steps": steps(50), "torch.gradients": rows})

    assert found.where == "Net.1"
    assert found.evidence[0] == "Net.0.weight: all gradients are 0"
    assert len(found.evidence) == 2


def test_a_layer_without_gradients_and_a_step_without_any_are_fine(judged: Judged, steps: Steps) -> None:
    healthy = (
        (100, 10, 99, 10, 100, 0),  # the first two are used in part
        (100, 10, 100, 10, 0, 0),  # the first two are not used in this step
        (100, 10, 100, 10, 100, 10),  # nor is any
        (100, 0, 0, 0, 0, 0),  # the input of the model is all 0
    )
    for zeros in healthy:
        assert judged("activations-dead", {"python.steps": steps(50), "torch.gradients": gradients(*zeros)}) == []


@pytest.mark.parametrize("stays", [True, False])
def test_what_later_steps_do_not_tell_is_not_shown(judged: Judged, steps: Steps, stays: bool) -> None:
    found = judged("activations-dead", {"python.steps": steps(50), "torch.gradients": gradients(100, 10, 100, 0)})

    job = Told(1, **{"rank 0, dead before Net.1": stays})

    assert looked("activations-dead", job, found) == (found if stays else [])


def test_without_gradients_or_steps_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("activations-dead", {"python.steps": steps(50)})
    with pytest.raises(NoEvidence):
        judged("activations-dead", {"python.steps": steps(3), "torch.gradients": gradients(100, 10, 100, 0)})
