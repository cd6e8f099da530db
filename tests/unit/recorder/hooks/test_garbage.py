"""`python.gc` of this very process, whose collector gets work to do."""

from __future__ import annotations

import gc
import time

import pytest

from probe_agent.recorder.config import Settings
from probe_agent.recorder.guest.failures import Errors, Failures
from probe_agent.recorder.hooks.garbage import MIN_NS, Pauses, Source
from probe_agent.recorder.ring.buffer import RowBuffer
from probe_agent.recorder.source import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Settings({}), Failures(RowBuffer(Errors)).record)


def test_a_long_collection_has_a_row_and_a_short_one_has_none(recorder: Recorder) -> None:
    source = Source(recorder)
    kept = [[number] for number in range(200_000)]
    source.start()

    gc.collect(0)
    began = time.time()
    gc.collect()
    ended = time.time()
    source.stop()

    (row,) = recorder.buffer(Pauses).rows
    step, ts, generation, duration, collected = row
    assert len(kept) == 200_000
    assert (step, generation) == (recorder.step.number, 2)
    assert MIN_NS * 1e-9 <= duration <= ended - began
    assert began <= ts * 1e-6 <= ended + 1e-3
    assert collected >= 0


def test_stop_takes_the_callback_off_and_leaves_those_of_others(recorder: Recorder) -> None:
    before = list(gc.callbacks)
    source = Source(recorder)

    source.start()
    during = list(gc.callbacks)
    source.stop()
    source.stop()

    assert len(during) == len(before) + 1
    assert gc.callbacks == before


def test_a_job_that_has_taken_it_off_is_no_failure(recorder: Recorder) -> None:
    before = list(gc.callbacks)
    source = Source(recorder)
    source.start()

    gc.callbacks[:] = before
    source.stop()

    assert gc.callbacks == before
