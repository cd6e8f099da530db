"""Averages of the weights that are kept in 16 bits."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable
from probe_cli.diagnose.rules import average_rounds_away

from .conftest import Judged
from .looking import Answers, looked

PLACE = "attribute `model` of local `ema` of main()"
COPIES = [
    {
        "module": name,
        "class": "UNet",
        "parameters": 500,
        "place": f"local `{place}` of follow()",
        "dtype": dtype,
        "optimizer": optimizer,
    }
    for name, place, dtype, optimizer in (("UNet", "model", "float32", "Adam"), ("UNet-2", "self", "bfloat16", None))
]


def job(*, dtype: str = "bfloat16", changed: int = 400, updates: int = 200) -> dict[str, Any]:
    """A model and an average of it, with how often their parameters have changed."""
    module = {"class": "UNet", "parameters": 500, "depth": 0}
    return {
        "torch.modules": [
            {**module, "module": "UNet", "place": "local `net` of main()", "dtype": "float32"},
            {**module, "module": "UNet-2", "place": PLACE, "dtype": dtype},
        ],
        "torch.parameters": [
            {"module": "UNet.0", "parameter": "weight", "versions": updates, "optimizer": "Adam"},
            {"module": "UNet-2.0", "parameter": "weight", "versions": changed, "optimizer": None},
        ],
    }


def reading(monkeypatch: pytest.MonkeyPatch, norm: float | None) -> None:
    """Have the weight of the average have a norm, where that of the model is 2."""

    async def values(job: object, rank: int, module: str) -> dict[tuple[object, object], tuple[object, object]]:
        known = 2.0 if module == "UNet" else norm
        return {} if known is None else {(f"{module}.0", "weight"): (known, 1.0)}

    monkeypatch.setattr(average_rounds_away, "values_of", values)


def test_an_average_in_16_bits_is_named(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    suspected = judged("average-rounds-away", job())
    assert [one.certainty for one in suspected] == [Certainty.SUSPECTED]
    reading(monkeypatch, 1.5)

    (found,) = looked("average-rounds-away", Answers(COPIES), suspected)

    assert found.sentence == "a copy of UNet that follows it is of bfloat16, which rounds away what is added to it"
    assert found.evidence == (
        "UNet-2 is of bfloat16, and was changed 400 times in 200 updates",
        "the norm of one of its weights is 25 % from that of the model",
    )


def test_a_copy_that_is_made_anew_with_each_update_is_fine(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    reading(monkeypatch, 2.001)

    assert looked("average-rounds-away", Answers(COPIES), judged("average-rounds-away", job(changed=200))) == []


def test_one_whose_values_cannot_be_read_is_not_judged(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    reading(monkeypatch, None)

    with pytest.raises(NoEvidence):
        looked("average-rounds-away", Answers(COPIES), judged("average-rounds-away", job()))


@pytest.mark.parametrize(
    "tables",
    [
        job(dtype="float32"),
        job(changed=3),  # copied now and then
    ],
)
def test_averages_in_32_bits_and_targets_that_are_copied_are_fine(judged: Judged, tables: dict[str, Any]) -> None:
    assert judged("average-rounds-away", tables) == []


def test_a_job_that_has_just_begun_and_one_without_a_copy_are_not_judged(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("average-rounds-away", job(updates=20))
    with pytest.raises(NotApplicable):
        judged("average-rounds-away", {})
