"""`probe.overhead`: excessive sampling is detected after two seconds, and then every ten."""

from __future__ import annotations

import pytest

from probe_agent.recorder.config import Settings
from probe_agent.recorder.guest.failures import Errors, Failures
from probe_agent.recorder.ring.buffer import RowBuffer
from probe_agent.recorder.samplers import overhead
from probe_agent.recorder.source import Recorder
from probe_agent.recorder.steps.governor import turn_of
from probe_agent.recorder.steps.step import Step


def test_the_governor_looks_early_for_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(overhead, "monotonic", lambda: now)
    recorder = Recorder(Settings({}), Failures(RowBuffer(Errors)).record)
    source = overhead.Source(recorder)
    rows = recorder.buffer(overhead.Overhead).rows
    every, num_rows = [], []

    for tenth in range(251):
        now = 100.0 + tenth / 10
        for number in range(tenth * 100, tenth * 100 + 100):
            step = Step()
            turn = turn_of(number, 20)
            if turn is not None:
                step.is_scheduled, step.sampled = True, recorder.governor.takes(turn)
            step.duration = 2e-3 if step.sampled else 1e-3  # one in twenty: 5 %
            recorder.governor.note(step)
        source.tick()
        every.append(recorder.governor.every)
        num_rows.append(len(rows))

    looked_at = [tenth / 10 for tenth in range(1, 251) if num_rows[tenth] > num_rows[tenth - 1]]
    assert looked_at == pytest.approx([2, 12, 22], abs=0.11)
    assert every[19] == 20
    assert every[22] == 80  # four times rarer at most, as long as no steps were left out to compare with
    assert every[-1] == 160  # 1 / 80 is 1.25 %, 1 / 160 is 0.6 %
