"""Weights kept aside that are the model's own."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged


def kept(name: str = "best_state", *, shared: int = 4, steps: int = 100, saves: int = 0) -> dict[str, Any]:
    return {
        "torch.kept_weights": [
            {"place": f"attribute `{name}` of local `run` of fit() at train.py:3", "module": "Net", "tensors": 6,
             "shared": shared}
        ],
        "python.steps": [{"step": step} for step in range(steps)],
        "python.checkpoints": [{"kind": "save"}] * saves,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["best_state", "best", "old_policy", "prev_params", "initial_weights", "_best"])
def test_what_is_to_stay_as_it_was_and_is_the_model_is_named(judged: Judged, name: str) -> None:
    (found,) = judged("kept-weights-change", kept(name))

    assert found.sentence == f"`{name}` holds the weights of Net themselves, no copy, and changes with each step"
    assert found.evidence == ("4 of its 6 tensors are parameters of Net",)


@pytest.mark.parametrize("name", ["state", "folded", "bestow", "params", "initialized"])
def test_other_names_say_nothing_of_what_is_meant(judged: Judged, name: str) -> None:
    with pytest.raises(NotApplicable):
        judged("kept-weights-change", kept(name))


@pytest.mark.parametrize("told", [kept(shared=0), kept(shared=1), kept(saves=1)])
def test_copies_and_what_may_be_in_a_file_are_fine(judged: Judged, told: dict[str, Any]) -> None:
    with pytest.raises(NotApplicable):
        judged("kept-weights-change", told)


def test_without_steps_there_is_no_evidence(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("kept-weights-change", kept(steps=3))
