"""Batches that are mostly padding."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps


def calls(mean: float, num: int = 6, **other: object) -> list[dict[str, object]]:
    mask = {"module": "Bert", "name": "attention_mask", "shape": "8x128", "low": 0.0, "high": 1.0, "mean": mean}
    return [{**mask, "call": at, **other} for at in range(num)]


def test_what_padding_costs_is_told(judged: Judged, steps: Steps) -> None:
    rows = steps(100, duration=0.1, forward=0.03, backward=0.05)

    (found,) = judged("padding-dominates", {"python.steps": rows, "torch.arguments": calls(0.25)})

    assert found.sentence == "75 % of the tokens that Bert computes are padding"
    assert found.cost_s == pytest.approx(0.06)
    assert found.share == pytest.approx(0.6)


def test_of_a_mask_that_hides_the_padding_its_ones_count(judged: Judged, steps: Steps) -> None:
    rows = steps(100, duration=0.1, forward=0.03, backward=0.05)

    def told(mean: float) -> int:
        masks = calls(mean, name="src_key_padding_mask")
        return len(judged("padding-dominates", {"python.steps": rows, "torch.arguments": masks}))

    assert told(0.75) == 1
    assert told(0.25) == 0


def test_some_padding_is_fine(judged: Judged, steps: Steps) -> None:
    rows = steps(100, duration=0.1, forward=0.03, backward=0.05)

    assert judged("padding-dominates", {"python.steps": rows, "torch.arguments": calls(0.5)}) == []


def test_few_calls_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("padding-dominates", {"python.steps": steps(100), "torch.arguments": calls(0.1, 2)})


@pytest.mark.parametrize("other", [{"shape": "8x1x128x128"}, {"shape": "8x4096"}, {"low": -1e9}, {"name": "attn_mask"}])
def test_other_masks_are_not_judged(judged: Judged, steps: Steps, other: dict[str, object]) -> None:
    with pytest.raises(NotApplicable):
        judged("padding-dominates", {"python.steps": steps(100), "torch.arguments": calls(0.1, **other)})
