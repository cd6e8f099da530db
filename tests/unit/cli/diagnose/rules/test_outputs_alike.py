"""A model that answers every sample with the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps, Tables


@pytest.fixture
def called(steps: Steps) -> Callable[..., Tables]:
    def make(
        output: float | None, given: float | None, num: int = 6, num_steps: int = 400, shape: str = "32x784"
    ) -> Tables:
        rows = [
            {"module": "Vae", "name": name, "call": at, "shape": of_shape, "varies": varies}
            for at in range(num)
            for name, varies, of_shape in (("inputs", given, shape), ("output", output, "32x784"))
        ]
        loss = {"module": "MSELoss", "name": "input", "call": 9, "shape": "32x784", "varies": 0.0}
        return {"python.steps": steps(num_steps), "torch.arguments": [*rows, loss]}

    return make


def test_outputs_that_are_all_alike_are_named(judged: Judged, called: Callable[..., Tables]) -> None:
    (found,) = judged("outputs-alike", called(0.004, 0.6))

    assert found.sentence == "Vae gives nearly the same output for all samples of a batch"
    assert "0 % of the deviation of its output (32x784) is between samples, of its input 60 %" in found.evidence[0]


@pytest.mark.parametrize(("output", "given"), [(0.3, 0.6), (0.004, 0.05)])
def test_outputs_that_differ_and_samples_that_do_not_are_fine(
    judged: Judged, called: Callable[..., Tables], output: float, given: float
) -> None:
    assert judged("outputs-alike", called(output, given)) == []


def test_noise_on_the_way_to_an_output_like_the_input_is_taken_into_account(
    judged: Judged, called: Callable[..., Tables]
) -> None:
    assert len(judged("outputs-alike", called(0.09, 0.8))) == 1
    assert judged("outputs-alike", called(0.09, 0.8, shape="32x64")) == []


def test_few_calls_and_a_job_that_has_just_begun_are_no_evidence(judged: Judged, called: Callable[..., Tables]) -> None:
    for tables in (called(0.0, 0.6, num=2), called(0.0, 0.6, num_steps=50)):
        with pytest.raises(NoEvidence):
            judged("outputs-alike", tables)


def test_values_that_were_not_read_are_not_judged(judged: Judged, called: Callable[..., Tables]) -> None:
    for tables in ({}, called(None, 0.6), called(0.0, None)):
        with pytest.raises(NotApplicable):
            judged("outputs-alike", tables)
