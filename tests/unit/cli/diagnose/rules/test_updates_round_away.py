"""Updates that are lost in parameters of 16 bits."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Tables

WEIGHTS = 10_000


def tables(
    optimizer: str = "AdamW",
    lr: float = 1e-5,
    *,
    dtype: str = "bfloat16",
    rms: float = 0.05,
    gradient: float = 1e-3,
    momentum: float | None = None,
    rates: tuple[float, ...] | None = None,
    num_steps: int = 100,
) -> Tables:
    rates = rates or (lr,) * num_steps
    names: dict[str, Any] = {"module": "Net.0", "parameter": "weight"}
    norms = {"norm": gradient * WEIGHTS**0.5, "weight_norm": None if dtype == "float32" else rms * WEIGHTS**0.5}
    return {
        "torch.gradients": [{**names, "place": 0, "dtype": dtype, "values": WEIGHTS, "zeros": 0, **norms}],
        "torch.parameters": [{**names, "optimizer": optimizer, "lr": lr}],
        "torch.optimizers": [{"options": "{}" if momentum is None else f'{{"momentum": {momentum}}}'}],
        "python.steps": [{"step": at, "backward": 0.01, "lr": rate} for at, rate in enumerate(rates)],
    }


def test_a_learning_rate_below_the_spacing_of_bfloat16_is_named(judged: Judged) -> None:
    (found,) = judged("updates-round-away", tables())

    assert "updates of 1e-05" in found.sentence
    assert found.where == "Net.0.weight"
    assert found.share == pytest.approx(0.918, abs=0.01)  # 1e-5 x 512 is a tenth of the root mean square


@pytest.mark.parametrize(
    "told",
    [
        tables(lr=1e-3),
        tables(dtype="float16"),  # it has three more bits
        tables("SGD", lr=0.1, gradient=0.01),
        tables("SGD", lr=0.01, gradient=5e-3, momentum=0.99),
        tables(lr=1e-7, rates=(1e-3,) * 50 + (1e-7,) * 50),  # a schedule at its end
    ],
)
def test_updates_that_are_large_enough_are_fine(judged: Judged, told: Tables) -> None:
    assert judged("updates-round-away", told) == []


def test_sgd_is_judged_by_its_gradient(judged: Judged) -> None:
    (found,) = judged("updates-round-away", tables("SGD", lr=0.01, gradient=1e-3))

    assert "SGD" in found.evidence[0]


def test_parameters_of_float32_and_other_optimizers_are_not_judged(judged: Judged) -> None:
    for told in (tables(dtype="float32"), tables("Lion")):
        with pytest.raises(NotApplicable):
            judged("updates-round-away", told)


def test_a_warm_up_and_a_job_that_has_just_begun_are_waited_for(judged: Judged) -> None:
    for told in (tables(num_steps=20), tables(rates=tuple(at * 1e-7 for at in range(100)))):
        with pytest.raises(NoEvidence):
            judged("updates-round-away", told)
