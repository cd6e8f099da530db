"""Batches whose targets are all ignored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged


def calls(ignored: Sequence[float | None]) -> dict[str, list[dict[str, object]]]:
    row = {"module": "CrossEntropyLoss", "library": "torch", "name": "target"}
    return {"torch.arguments": [{**row, "call": at, "ignored": part} for at, part in enumerate(ignored)]}


def test_batches_without_a_target_are_named(judged: Judged) -> None:
    (found,) = judged("targets-ignored", calls([1.0, 1.0, 1.0, 0.9]))

    assert found.sentence.startswith("in 75 % of the calls of CrossEntropyLoss all targets (target) are -100")
    assert found.share == pytest.approx(0.75)


def test_long_prompts_are_fine(judged: Judged) -> None:
    assert judged("targets-ignored", calls([0.99, 0.98, 1.0, 0.97])) == []


def test_few_calls_are_no_evidence(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("targets-ignored", calls([1.0]))


def test_without_labels_there_is_nothing_to_judge(judged: Judged) -> None:
    for tables in ({}, calls([None, None])):
        with pytest.raises(NotApplicable):
            judged("targets-ignored", tables)
