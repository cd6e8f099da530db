"""Optimizers that do not live from step to step."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def steps(num: int, every: int) -> list[dict[str, Any]]:
    return [{"step": at, "optimizer": 1e-3, "new_optimizer": at % every == every - 1} for at in range(num)]


def test_one_made_in_every_step_or_every_few_is_named(judged: Judged) -> None:
    (always,) = judged("optimizer-made-anew", {"python.steps": steps(100, every=1)})
    (often,) = judged("optimizer-made-anew", {"python.steps": steps(100, every=5)})

    assert "in every step" in always.sentence
    assert "every 5 steps" in often.sentence


def test_one_for_each_epoch_is_no_fault(judged: Judged) -> None:
    assert judged("optimizer-made-anew", {"python.steps": steps(400, every=50)}) == []


def test_few_steps_or_a_loop_without_an_optimizer_say_nothing(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("optimizer-made-anew", {"python.steps": steps(20, every=1)})
    with pytest.raises(NotApplicable):
        judged("optimizer-made-anew", {"python.steps": [{**row, "optimizer": 0.0} for row in steps(100, every=1)]})
