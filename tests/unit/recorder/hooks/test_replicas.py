"""Which steps of a rank get a checksum of its weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from probe_agent.recorder.config import Settings
from probe_agent.recorder.hooks import replicas
from probe_agent.recorder.source import Recorder


def test_sampled_steps_and_the_first_of_each_four_seconds_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    source = replicas.Source(Recorder(Settings({}), lambda name, error: None))
    now, noted = [0.0], list[float]()
    monkeypatch.setattr(replicas, "time_ns", lambda: int(now[0] * 1e9))
    monkeypatch.setattr(source, "_note", lambda: noted.append(now[0]))

    def end(at: float, *, sampled: bool = False, is_training: bool = True) -> None:
        now[0] = at
        step = SimpleNamespace(sampled=sampled, is_one=True, is_training=is_training)
        monkeypatch.setattr(source, "_step", step)
        source._at_end()

    for at in (101.0, 102.0, 103.5, 104.2, 107.0, 108.0):
        end(at)
    end(109.0, sampled=True)
    end(113.0, is_training=False)

    assert noted == [101.0, 104.2, 108.0, 109.0]
