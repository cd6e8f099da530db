"""`probe.overhead`: what samples too much is seen after two seconds, and then every ten."""

from __future__ import annotations

import pytest

from probe_agent.recorder.config import Settings
from probe_agent.recorder.errors import Errors, Failures
from probe_agent.recorder.ring.buffer import RowBuffer
from probe_agent.recorder.samplers import overhead
from probe_agent.recorder.source import Recorder
from probe_agent.recorder.step import Step


def test_the_governor_looks_early_for_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(overhead, "monotonic", lambda: now)
    recorder = Recorder(Settings({"PROBE_TRACE_EVERY": "10"}), Failures(RowBuffer(Errors)).record)
    source = overhead.Source(recorder)
    rows = recorder.buffer(overhead.Overhead).rows
    every, num_rows = [], []

    for tenth in range(251):
        now = 100.0 + tenth / 10
        step = Step()
        step.sampled = recorder.governor.every > 0 and tenth % recorder.governor.every == 0
        step.duration = 2e-3 if step.sampled else 1e-3  # one in ten: 10 %
        for _ in range(10):
            recorder.governor.note(step)
        source.tick()
        every.append(recorder.governor.every)
        num_rows.append(len(rows))

    looked_at = [tenth / 10 for tenth in range(1, 251) if num_rows[tenth] > num_rows[tenth - 1]]
    assert looked_at == pytest.approx([2, 12, 22], abs=0.11)
    assert every[19] == 10
    assert every[22] == 160  # 1 / 80 is 1.25 %, 1 / 160 is 0.6 %
