"""`python.stalls`: what counts as a stall, on a clock of the test's own."""

from __future__ import annotations

import pytest

from probe_agent.recorder.config import Settings
from probe_agent.recorder.guest.failures import Errors, Failures
from probe_agent.recorder.ring.buffer import RowBuffer
from probe_agent.recorder.samplers import stalls
from probe_agent.recorder.source import Recorder
from probe_agent.recorder.stall import snapshot

#: Seconds of a period between two ticks, and the steps in it: three stalls between as many bursts of 8 short steps,
#: each burst seen at once, as on a host whose processors are taken.
BEFORE = [(0.16, 8), (3.0, 1), (0.16, 8), (2.5, 1), (0.16, 8), (4.0, 1)]
HELD_S = 1.5


@pytest.mark.parametrize("num_after", [1, 9])
def test_a_held_gil_is_noticed_after_stalls_and_with_the_steps_that_follow(
    monkeypatch: pytest.MonkeyPatch, num_after: int
) -> None:
    now_s, num_steps = 0.0, 0
    monkeypatch.setattr(stalls, "perf_counter_ns", lambda: round(now_s * 1e9))
    monkeypatch.setattr(Recorder, "num_steps", property(lambda _: num_steps))
    monkeypatch.setattr(stalls, "loaded", lambda _: None)  # another test may have imported torch.distributed
    monkeypatch.setattr(snapshot, "threads", lambda _: [])
    monkeypatch.setattr(snapshot, "sections", lambda *_: [])
    monkeypatch.setattr(stalls.Source, "_save", lambda *_: 0)
    settings = Settings({"PROBE_STALL_AFTER": "0.5", "PROBE_STALL_WATCH": "off"})
    recorder = Recorder(settings, Failures(RowBuffer(Errors)).record)
    source = stalls.Source(recorder)
    rows = recorder.buffer(stalls.Stalls).rows

    for seconds, num_new in BEFORE:
        now_s += seconds
        num_steps += num_new
        source.tick()
    settings.change({"stall.watch": "on"})
    now_s += HELD_S + (num_after - 1) * 0.02
    num_steps += num_after
    source.tick()

    columns = [column.name for column in stalls.Stalls.columns]
    (noticed, over) = (dict(zip(columns, row, strict=True)) for row in rows)
    assert noticed["median"] == pytest.approx(0.02)
    assert noticed["threshold"] == 0.5
    assert noticed["unseen"] == over["unseen"] >= HELD_S


def test_many_steps_at_half_the_usual_speed_are_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, num_steps = 0.0, 0
    monkeypatch.setattr(stalls, "perf_counter_ns", lambda: round(now_s * 1e9))
    monkeypatch.setattr(Recorder, "num_steps", property(lambda _: num_steps))
    recorder = Recorder(Settings({"PROBE_STALL_AFTER": "0.5"}), Failures(RowBuffer(Errors)).record)
    source = stalls.Source(recorder)

    for seconds, num_new in [*[(0.16, 8)] * 9, (2.0, 50)]:
        now_s += seconds
        num_steps += num_new
        source.tick()

    assert recorder.buffer(stalls.Stalls).rows == []
