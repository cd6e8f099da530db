"""The offset from the monotonic clock to the time of day, when something runs between two readings."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from probe_agent.recorder.guest import epoch

DAY_NS = 1_790_000_000_000_000_000


def clocks(monkeypatch: pytest.MonkeyPatch, *interruptions_ns: int) -> None:
    """Let each reading take 100 ns, and the time of day be read so long after it was asked for."""
    now, waits = [0], iter(interruptions_ns)

    def reading(epoch_ns: int, wait: Callable[[], int]) -> Callable[[], int]:
        def read() -> int:
            now[0] += 100
            value = now[0] + epoch_ns
            now[0] += wait()
            return value

        return read

    monkeypatch.setattr(epoch, "perf_counter_ns", reading(0, lambda: 0))
    monkeypatch.setattr(epoch, "time_ns", reading(DAY_NS, lambda: next(waits)))


def test_a_reading_that_was_interrupted_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks(monkeypatch, 20_000_000, 5_000_000, 0)

    assert epoch.epoch_ns() == DAY_NS


def test_if_all_are_interrupted_the_shortest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks(monkeypatch, 20_000_000, 5_000_000, 40_000, 7_000_000, 5_000_000)

    assert abs(epoch.epoch_ns() - DAY_NS) == 20_000


def test_it_is_that_of_this_machine() -> None:
    assert abs(epoch.epoch_ns() + time.perf_counter_ns() - time.time_ns()) < 1_000_000_000
