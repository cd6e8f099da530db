"""Target networks and averages that never change."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NotApplicable
from probe_cli.diagnose.rules import target_not_updated

from .conftest import Judged
from .looking import Answers, looked

COPIES = [
    {"module": name, "class": "QNet", "parameters": 500, "place": f"attribute `{place}` of local `agent`",
     "optimizer": optimizer}
    for name, place, optimizer in (("QNet", "q", "Adam"), ("QNet-2", "target", None))
]  # fmt: skip


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


def watching(monkeypatch: pytest.MonkeyPatch, updates: int) -> None:
    """Have a copy that is watched be unchanged in so many updates."""

    async def watched(*asked: object) -> int:
        return updates

    monkeypatch.setattr(target_not_updated, "updates_without_change", watched)


def test_a_copy_that_never_changes_is_named(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    watching(monkeypatch, 312)
    suspected = judged("target-not-updated", job())
    assert [one.certainty for one in suspected] == [Certainty.SUSPECTED]

    (found,) = looked("target-not-updated", Answers(COPIES), suspected)

    assert found.certainty is Certainty.LIKELY
    assert found.sentence == "a copy of QNet never changes, and is to follow it by its name"
    assert found.where == "attribute `target` of local `agent`"
    assert "QNet was changed 9,000 times, the copy (QNet-2) 1 times" in found.evidence[0]
    assert found.evidence[1] == "its values stayed as they are in 312 updates that were watched"


def test_one_that_is_written_without_being_counted_is_fine(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    watching(monkeypatch, 0)

    assert looked("target-not-updated", Answers(COPIES), judged("target-not-updated", job())) == []


def test_one_that_follows_and_one_that_may_yet_are_fine(judged: Judged) -> None:
    assert judged("target-not-updated", job(copied=90)) == []
    assert judged("target-not-updated", job(trained=3_000)) == []


def test_a_teacher_a_reference_and_another_model_are_none(judged: Judged) -> None:
    for rows in (job("teacher"), job("reference"), job("schema"), job(size=900), {}):
        with pytest.raises(NotApplicable):
            judged("target-not-updated", rows)
