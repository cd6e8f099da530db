"""Ranks that take different numbers of steps between two meetings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from probe_cli.cluster.compare.facts import Clock, Facts, Who
from probe_cli.cluster.compare.rounds import in_rounds
from probe_cli.cluster.compare.study import study

from .made import BEGAN, CALL, STEP, columns, job

STEP_S, TRANSFER_S = 0.01, 0.001


def federated(num_steps: Sequence[int], num_rounds: int, slow: dict[int, float]) -> list[Facts]:
    """Ranks that take so many steps of 10 ms each, and what is added to one, before they average their weights."""
    now = np.full(len(num_steps), BEGAN)
    steps: list[list[dict[str, Any]]] = [[] for _ in num_steps]
    calls: list[list[dict[str, Any]]] = [[] for _ in num_steps]
    for number in range(num_rounds):
        for rank, num in enumerate(num_steps):
            for _ in range(num):
                lasts = STEP_S + slow.get(rank, 0.0)
                now[rank] += lasts
                phases = {"data_wait": 0.0, "forward": 0.4 * lasts, "backward": 0.5 * lasts, "optimizer": 0.1 * lasts}
                row = {**STEP, "number": len(steps[rank]), "ended": now[rank], "duration": lasts, "other": 0.0}
                steps[rank].append({**row, **phases})
        over = now.max() + TRANSFER_S
        for rank in range(len(num_steps)):
            called = {"seq": number, "step": len(steps[rank]), "start": now[rank], "ended": over, "by_cpp": False}
            calls[rank].append({**CALL, **called, "wait": over - now[rank], "phase": "other", "wait_phase": "other"})
        now[:] = over
    return [
        Facts(
            Who(rank, "vm", 1000 + rank), steps=columns(steps[rank]), calls=columns(calls[rank]), clock=Clock(0, 0, 6)
        )
        for rank in range(len(num_steps))
    ]


def test_a_round_is_what_lies_between_two_meetings() -> None:
    facts = federated([8, 8, 10], 60, {})

    rounds = in_rounds(facts, 10)

    for fact, num in zip(rounds, (8, 8, 10), strict=True):
        assert len(fact.steps["number"]) == 59
        assert fact.steps["duration"] == pytest.approx(0.101, abs=1e-6)
        assert fact.steps["forward"] == pytest.approx(0.4 * num * STEP_S, abs=1e-6)
        assert fact.steps["other"] == pytest.approx(0.101 - num * STEP_S, abs=1e-6)
        assert (fact.calls["step"] == np.arange(59)).all()


def test_the_rank_that_the_others_wait_for_is_found_though_its_steps_have_other_numbers() -> None:
    found = study(federated([10, 10, 10, 8], 80, {3: 0.006}), 60)

    best = found.analysis.candidates[0]
    assert best.ranks == (3,)
    assert best.share == pytest.approx((8 * 0.016 - 0.1) / (8 * 0.016 + TRANSFER_S), abs=0.02)
    assert found.analysis.covered > 0.95
    assert any("different numbers of steps" in note for note in found.notes)


def test_ranks_with_as_many_steps_are_left_as_they_are() -> None:
    facts = job(4, 80)

    assert all(new is old for new, old in zip(in_rounds(facts, 10), facts, strict=True))
    few = federated([8, 10], 8, {})
    assert all(new is old for new, old in zip(in_rounds(few, 10), few, strict=True))
