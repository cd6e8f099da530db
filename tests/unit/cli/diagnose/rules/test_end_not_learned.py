"""Texts whose end is ignored."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Tables


def calls(ends: float | None, num: int = 6) -> Tables:
    row = {"module": "GPT2LMHeadModel", "name": "labels", "end_ignored": ends}
    return {"torch.arguments": [{**row, "call": at} for at in range(num)]}


def test_an_end_that_is_ignored_in_all_texts_is_named(judged: Judged) -> None:
    (found,) = judged("end-not-learned", calls(1.0))

    assert found.sentence.startswith("the end of the text is ignored in the labels of GPT2LMHeadModel")
    assert "in 100 % of the texts" in found.evidence[0]


def test_some_texts_that_are_cut_are_fine(judged: Judged) -> None:
    assert judged("end-not-learned", calls(0.3)) == []


def test_few_calls_are_no_evidence(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("end-not-learned", calls(1.0, 2))


def test_without_a_mask_there_is_nothing_to_judge(judged: Judged) -> None:
    for tables in ({}, calls(None)):
        with pytest.raises(NotApplicable):
            judged("end-not-learned", tables)
