"""Target networks and averages that never change."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def job(copy: str = "target", *, copied: int = 1, trained: int = 9_000, size: int = 500) -> dict[str, Any]:
    """A model and a copy of it, with how often their parameters have changed."""
    modules = [
        {
            "module": module,
            "class": "QNet",
            "parameters": num,
            "depth": 0,
            "place": f"attribute `{name}` of local `agent`",
        }
        for module, name, num in (("QNet", "q", 500), ("QNet-2", copy, size))
    ]
    parameters = [
        {"module": "QNet.0", "parameter": "weight", "versions": trained, "optimizer": "Adam"},
        {"module": "QNet-2.0", "parameter": "weight", "versions": copied, "optimizer": None},
    ]
    return {"torch.modules": modules, "torch.parameters": parameters}


def test_a_copy_that_never_changes_is_named(judged: Judged) -> None:
    (found,) = judged("target-not-updated", job())

    assert found.sentence == "a copy of QNet never changes, and is to follow it by its name"
    assert found.where == "attribute `target` of local `agent`"
    assert "QNet was changed 9,000 times, the copy (QNet-2) 1 times" in found.evidence[0]


def test_one_that_follows_and_one_that_may_yet_are_fine(judged: Judged) -> None:
    assert judged("target-not-updated", job(copied=90)) == []
    assert judged("target-not-updated", job(trained=3_000)) == []


def test_a_teacher_a_reference_and_another_model_are_none(judged: Judged) -> None:
    for rows in (job("teacher"), job("reference"), job("schema"), job(size=900), {}):
        with pytest.raises(NotApplicable):
            judged("target-not-updated", rows)
