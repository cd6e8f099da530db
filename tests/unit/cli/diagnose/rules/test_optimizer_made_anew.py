"""Optimizers that do not live from step to step."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def steps(num: int, every: int, backwards: int = 1) -> list[dict[str, Any]]:
    usual = {"optimizer": 1e-3, "micro_batches": backwards}
    return [{**usual, "step": at, "new_optimizer": at % every == every - 1} for at in range(num)]


def test_one_made_in_each_step_is_named(judged: Judged) -> None:
    (found,) = judged("optimizer-made-anew", {"python.steps": steps(100, every=1)})

    assert "made anew in each step" in found.sentence


def test_one_for_each_task_is_no_fault(judged: Judged) -> None:
    assert judged("optimizer-made-anew", {"python.steps": steps(400, every=5)}) == []


def test_one_whose_step_calls_a_closure_many_times_is_not_judged(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("optimizer-made-anew", {"python.steps": steps(100, every=1, backwards=20)})


def test_few_steps_or_a_loop_without_an_optimizer_say_nothing(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("optimizer-made-anew", {"python.steps": steps(20, every=1)})
    with pytest.raises(NotApplicable):
        judged("optimizer-made-anew", {"python.steps": [{**row, "optimizer": 0.0} for row in steps(100, every=1)]})
