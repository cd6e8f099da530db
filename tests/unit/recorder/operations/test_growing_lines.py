"""Which lines `memory --leaks` calls growing, from what they keep at each look."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from probe_agent.recorder.operations.leaks import LOOKS_AT, _grows, _Kept


def look(mib: float) -> _Kept:
    kept = _Kept()
    kept.num, kept.mib = int(mib), mib
    return kept


def seen(kept_at: Callable[[float], float], steps: int = 75) -> bool:
    at = [float(round(share * steps)) for share in LOOKS_AT]
    return _grows([look(kept_at(step)) for step in at], at)


def test_a_line_that_keeps_more_each_step_grows() -> None:
    assert seen(lambda step: 0.5 * step)


def test_a_line_that_keeps_more_every_tenth_step_grows() -> None:
    assert seen(lambda step: step // 10 * 4.0)


@pytest.mark.parametrize("period", range(3, 51))
def test_a_saw_with_teeth_of_up_to_two_thirds_of_the_window_does_not_grow(period: int) -> None:
    def tooth(phase: int) -> Callable[[float], float]:
        return lambda step: 4.0 * ((step + phase) % period + 1)

    assert not [phase for phase in range(period) if seen(tooth(phase))]


def test_a_cache_that_fills_and_stays_does_not_grow() -> None:
    assert not seen(lambda step: min(step, 30.0))
