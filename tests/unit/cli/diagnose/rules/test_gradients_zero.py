"""Weights whose gradient is exactly zero."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable

from .conftest import Judged, Steps
from .looking import Answers, looked


def gradients(*zeros: int, step: int = 50, values: int = 100) -> list[dict[str, Any]]:
    """Of a weight of 100 elements in each layer, so many are 0; biases do not count."""
    shared = {"read_step": step}
    weights = [
        {"place": 2 * at, "module": f"Net.{at}", "parameter": "weight", "values": values, "zeros": num, **shared}
        for at, num in enumerate(zeros)
    ]
    biases = [{**one, "place": one["place"] + 1, "parameter": "bias", "values": 10, "zeros": 10} for one in weights]
    return weights + biases


def asked(*zeros: int) -> Answers:
    """A job of which each question reads the next step, and so many gradients of the second layer are 0 in it."""
    return Answers(*(gradients(3, num, 3, step=51 + at) for at, num in enumerate(zeros)), [])


def test_weights_without_a_gradient_are_suspected_and_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("gradients-zero", {"python.steps": steps(50), "torch.gradients": gradients(3, 100, 100)})

    assert found.sentence == "the gradient of Net.1.weight and 1 more is exactly 0 in every step"
    assert (found.certainty, round(found.share or 0.0, 2)) == (Certainty.SUSPECTED, 0.67)


@pytest.mark.parametrize(("zeros", "is_told"), [((100, 100, 100, 100, 100), True), ((100, 100, 40), False)])
def test_gradients_of_later_steps_decide(judged: Judged, steps: Steps, zeros: tuple[int, ...], is_told: bool) -> None:
    """An expert that a batch did not use has gradients in the next one."""
    found = judged("gradients-zero", {"python.steps": steps(50), "torch.gradients": gradients(3, 100, 3)})

    told = looked("gradients-zero", asked(*zeros), found)

    assert [one.certainty for one in told] == ([Certainty.LIKELY] if is_told else [])


@pytest.mark.parametrize("zeros", [(100, 100), ()])
def test_too_few_later_steps_are_no_evidence(judged: Judged, steps: Steps, zeros: tuple[int, ...]) -> None:
    found = judged("gradients-zero", {"python.steps": steps(50), "torch.gradients": gradients(3, 100, 3)})

    with pytest.raises(NoEvidence, match="further steps"):
        looked("gradients-zero", asked(*zeros), found)


def test_some_zeros_small_weights_and_a_job_that_has_learned_all_are_fine(judged: Judged, steps: Steps) -> None:
    small = gradients(0, values=10_000) + [{**one, "module": "Net.9"} for one in gradients(8, values=8)]
    for told in (gradients(99, 50, 0), gradients(100, 100, 100), small):
        assert judged("gradients-zero", {"python.steps": steps(50), "torch.gradients": told}) == []


def test_without_gradients_and_at_the_beginning_nothing_is_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("gradients-zero", {"python.steps": steps(50)})
    with pytest.raises(NoEvidence):
        judged("gradients-zero", {"python.steps": steps(5), "torch.gradients": gradients(3, 100)})
