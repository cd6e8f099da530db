"""Epochs whose samples come in the same order."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Tables


def loader(**others: object) -> Tables:
    row = {"place": "local `loader` of main()", "sampler": "DistributedSampler", "sampler_shuffles": True}
    return {"torch.dataloaders": [{**row, "sampler_epoch": 0, "passes": 4, "whole_passes": 3, **others}]}


def test_a_sampler_that_was_never_told_the_epoch_is_named(judged: Judged) -> None:
    (found,) = judged("same-order-each-epoch", loader())

    assert found.evidence == ("3 whole passes, and the epoch of DistributedSampler is still 0",)


@pytest.mark.parametrize("fine", [{"sampler_epoch": 3}, {"whole_passes": 1}, {"whole_passes": None}])
def test_one_that_is_told_and_a_first_epoch_are_fine(judged: Judged, fine: dict[str, object]) -> None:
    assert judged("same-order-each-epoch", loader(**fine)) == []


@pytest.mark.parametrize("other", [{"sampler": "RandomSampler"}, {"sampler_shuffles": False}])
def test_samplers_that_need_no_epoch_are_not_judged(judged: Judged, other: dict[str, object]) -> None:
    with pytest.raises(NotApplicable):
        judged("same-order-each-epoch", loader(**other))
