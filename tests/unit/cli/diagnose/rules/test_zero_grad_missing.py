"""Gradients that are never cleared."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def parameter(**others: Any) -> dict[str, Any]:
    return {
        "module": "Net", "parameter": "a", "parameters": 100, "trainable": True, "optimizer": "SGD", "steps_seen": 100,
        "has_gradient": True, "gradient_versions": 150, "is_cleared": False, **others,
    }  # fmt: skip


def test_a_gradient_that_is_added_to_in_each_step_is_named(judged: Judged) -> None:
    (found,) = judged("zero-grad-missing", {"torch.parameters": [parameter()]})

    assert "zero_grad() is missing" in found.sentence


def test_fresh_gradients_and_cleared_ones_are_fine(judged: Judged) -> None:
    for healthy in ({"gradient_versions": 1}, {"is_cleared": True}, {"has_gradient": False}, {"steps_seen": 5}):
        assert judged("zero-grad-missing", {"torch.parameters": [parameter(**healthy)]}) == []


def test_without_an_optimizer_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("zero-grad-missing", {"torch.parameters": [parameter(optimizer=None)]})
