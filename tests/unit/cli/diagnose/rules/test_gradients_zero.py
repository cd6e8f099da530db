"""Weights whose gradient is exactly zero."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable

from .conftest import Judged, Steps
from .looking import Told, looked


def gradients(*zeros: int, step: int = 50, values: int = 100) -> list[dict[str, Any]]:
    """Of a weight of 100 elements in each layer, so many are 0; each bias has some that are not."""
    shared = {"read_step": step}
    weights = [
        {"place": 2 * at, "module": f"Net.{at}", "parameter": "weight", "values": values, "zeros": num, **shared}
        for at, num in enumerate(zeros)
    ]
    biases = [{**one, "place": one["place"] + 1, "parameter": "bias", "values": 10, "zeros": 10} for one in weights]
    return weights + biases


class Answers(Told):
    """A job of one rank that answers each ask with the gradients of the next step."""

    def __init__(self, *zeros: int) -> None:
        super().__init__(1)
        self._asked = [gradients(3, num, 3, step=51 + at) for at, num in enumerate(zeros)]

    async def once(self, name: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await make()

    async def rows(self, sql: str, rank: int) -> list[Mapping[str, Any]]:
        return list(self._asked.pop(0)) if self._asked else []


def test_weights_without_a_gradient_are_suspected_and_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("gradients-zero", {"python.steps": steps(50), "torch.gradients": gradients(3, 100, 100)})

    assert found.sentence == "the gradient of Net.1.weight and 1 more is exactly 0 in every step"
    assert (found.certainty, round(found.share or 0.0, 2)) == (Certainty.SUSPECTED, 0.67)


@pytest.mark.parametrize(
    ("zeros", "is_told"),
    [((100, 100, 100, 100, 100), True), ((100, 100, 40), False), ((100, 100), False), ((), False)],
)
def test_gradients_of_later_steps_decide(judged: Judged, steps: Steps, zeros: tuple[int, ...], is_told: bool) -> None:
    """An expert that a batch did not use has gradients in the next one; two steps are too few."""
    found = judged("gradients-zero", {"python.steps": steps(50), "torch.gradients": gradients(3, 100, 3)})

    told = looked("gradients-zero", Answers(*zeros), found)

    assert [one.certainty for one in told] == ([Certainty.LIKELY] if is_told else [])


def test_some_zeros_small_weights_and_a_job_that_has_learned_all_are_fine(judged: Judged, steps: Steps) -> None:
    small = gradients(0, values=10_000) + [{**one, "module": "Net.9"} for one in gradients(8, values=8)]
    for told in (gradients(99, 50, 0), gradients(100, 100, 100), small):
        assert judged("gradients-zero", {"python.steps": steps(50), "torch.gradients": told}) == []


def test_without_gradients_and_at_the_beginning_nothing_is_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("gradients-zero", {"python.steps": steps(50)})
    with pytest.raises(NoEvidence):
        judged("gradients-zero", {"python.steps": steps(5), "torch.gradients": gradients(3, 100)})
