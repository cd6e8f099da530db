"""Samplers with a weight for each class."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NotApplicable

from .conftest import Judged


def loader(weights: int | None, draws: int | None, samples: int | None = None) -> dict[str, list[dict[str, Any]]]:
    row = {"loader": "DataLoader", "place": "local `loader`", "sampler": "WeightedRandomSampler", "samples": samples}
    return {"torch.dataloaders": [{**row, "sampler_weights": weights, "sampler_draws": draws}]}


def test_a_weight_for_each_class_is_told(judged: Judged) -> None:
    (known,) = judged("samples-never-drawn", loader(40, 12_000, samples=12_000))
    (guessed,) = judged("samples-never-drawn", loader(40, 12_000))

    assert "draws no sample after the first 40" in known.sentence
    assert (known.certainty, guessed.certainty) == (Certainty.LIKELY, Certainty.POSSIBLE)


def test_a_weight_for_each_sample_is_fine(judged: Judged) -> None:
    assert judged("samples-never-drawn", loader(12_000, 12_000, samples=12_000)) == []
    assert judged("samples-never-drawn", loader(12_000, 24_000)) == []


def test_other_samplers_are_not_judged(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("samples-never-drawn", loader(None, None))
