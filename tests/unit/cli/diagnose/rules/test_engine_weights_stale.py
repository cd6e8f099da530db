"""The model that generates does not get the trained weights any more."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rules import engine_weights_stale

from .conftest import Judged
from .looking import Answers, looked

NAME = "engine-weights-stale"


def tables(loads: int, updates: int, phase: str = "generate") -> dict[str, list[dict[str, object]]]:
    model = {"class": "Policy", "depth": 0, "parameters": 100, "trainable": 100, "place": "local"}
    weight = {"parameter": "weight", "parameters": 100, "trainable": True, "has_gradient": False}
    calls = {"stage": "forward", "step": 1, "ts": "2026-01-01"}
    return {
        "torch.modules": [{**model, "module": "Policy"}, {**model, "module": "Policy#2"}],
        "torch.parameters": [
            {**weight, "module": "Policy.head", "versions": loads, "optimizer": None},
            {**weight, "module": "Policy#2.head", "versions": updates, "optimizer": "Adam"},
        ],
        "python.torch_trace": [
            {**calls, "module": "Policy", "phase": phase}, {**calls, "module": "Policy#2", "phase": "train"},
        ],
    }  # fmt: skip


def seen(loads: int, updates: int) -> list[dict[str, object]]:
    like = {"class": "Policy", "parameters": 100}
    return [
        {**like, "module": "Policy", "versions": loads, "optimizer": None, "generates": True},
        {**like, "module": "Policy#2", "versions": updates, "optimizer": "Adam", "generates": False},
    ]


@pytest.fixture
def suspected(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.setattr(engine_weights_stale, "PAUSE_S", 0.0)
    return judged(NAME, tables(128, 4000))


def test_an_engine_that_was_left_out_many_times_is_named(suspected: list[Finding]) -> None:
    assert [one.certainty for one in suspected] == [Certainty.SUSPECTED]

    (found,) = looked(NAME, Answers(seen(128, 4000), seen(128, 4100), seen(128, 4300)), suspected)

    assert found.sentence == "Policy generates with old weights: it does not get those of Policy#2 any more"
    assert found.evidence[0] == "300 updates of Policy#2 meanwhile, and no change of Policy"


def test_an_engine_that_gets_weights_meanwhile_is_fine(suspected: list[Finding]) -> None:
    assert looked(NAME, Answers(seen(128, 4000), seen(128, 4100), seen(129, 4300)), suspected) == []


def test_one_that_gets_them_seldom_is_not_judged(suspected: list[Finding]) -> None:
    with pytest.raises(NoEvidence, match="too few to tell"):
        looked(NAME, Answers(seen(6, 4000), seen(6, 4300)), suspected)


def wrapped(rollouts: int, phase: str = "generate", loads: int = 0) -> dict[str, list[dict[str, object]]]:
    """A copy in an engine, by whose name its calls are not recorded."""
    found = tables(loads, 4000, phase)
    found["torch.modules"][0] |= {"module": "Engine", "class": "Engine"}
    found["torch.parameters"][0] |= {"module": "Engine.net"}
    return {**found, "python.steps": [{"step": 1, "rollout": rollouts}]}


@pytest.mark.parametrize(("updates", "certainties"), [(25, [Certainty.POSSIBLE]), (0, [])])
def test_an_engine_that_never_got_any_is_named(
    judged: Judged, monkeypatch: pytest.MonkeyPatch, updates: int, certainties: list[Certainty]
) -> None:
    async def watched(*asked: object) -> int:
        return updates

    monkeypatch.setattr(engine_weights_stale, "updates_without_change", watched)
    (suspected,) = judged(NAME, wrapped(3))
    copies = [{**one, "class": kind} for one, kind in zip(seen(0, 4000), ("Engine", "Policy"), strict=True)]

    found = looked(NAME, Answers(copies), [suspected])

    assert suspected.sentence.startswith("Engine seems to generate with the weights that it began with")
    assert [one.certainty for one in found] == certainties


def test_without_rollouts_and_with_copies_that_change_none_is_suspected(judged: Judged) -> None:
    for rows in (wrapped(0), wrapped(3, phase="eval"), wrapped(3, loads=90)):
        with pytest.raises(NotApplicable):
            judged(NAME, rows)


def test_a_frozen_copy_and_one_that_does_not_generate_are_none(judged: Judged) -> None:
    assert judged(NAME, tables(1, 4000)) == []
    with pytest.raises(NotApplicable):
        judged(NAME, tables(128, 4000, phase="evaluation"))
