"""Stacks that are read from outside, on a clock that moves with each question."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from probe_agent.wire import Backtrace, Frame, ThreadStack
from probe_cli.diagnose import sampling
from probe_cli.diagnose.sampling import Stack, first_stacks

STEP_S, ASKS_S = 0.04, 0.025
READS = Frame("count", "/job/train.py", 9, 0, "python", "    right += output[at].item() > 0")
TRAINS = Frame("main", "/job/train.py", 12, 0, "python", "    loss.backward()")


def thread(name: str, ident: int, *frames: Frame, trains: bool = False, is_probe: bool = False) -> ThreadStack:
    return ThreadStack(name, ident, ident, name == "MainThread", trains, is_probe, frames)


class Job:
    """Each step reads values in its first quarter, on a thread beside the main thread. What the recorder is asked takes
    `answers_s`."""

    def __init__(self, answers_s: float = 0.01) -> None:
        self.now = 0.0
        self._answers_s = answers_s

    async def ask(self, client: object, *, all_threads: bool = False, outside: bool = False) -> Backtrace:
        self.now += ASKS_S if outside else self._answers_s
        frame = READS if self.now % STEP_S < STEP_S / 4 else TRAINS
        waits = thread("MainThread", 1, Frame("join", "/lib/threading.py", 1, 0, "python", None))
        own = thread("probe", 3, TRAINS, is_probe=True)
        # Only the recorder knows who trains.
        return Backtrace((waits, own, thread("trainer", 2, frame, trains=not outside)), "recorder", ())

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def stacks_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def look(job: Job) -> list[Stack]:
        monkeypatch.setattr(sampling, "ask_stacks", job.ask)
        monkeypatch.setattr(sampling.time, "monotonic", lambda: job.now)
        monkeypatch.setattr(sampling.asyncio, "sleep", job.sleep)
        client: Any = None
        return asyncio.run(first_stacks(client))

    yield look
    monkeypatch.undo()  # asyncio's own clock, too


def test_looks_do_not_keep_pace_with_the_steps(stacks_of: Any) -> None:
    """A question and a pause of 15 ms together last as long as a step."""
    seen = [stack.frames[0] for _ in range(20) for stack in stacks_of(Job())]

    assert 0.1 < seen.count(READS) / len(seen) < 0.45


def test_the_thread_that_trains_is_told_and_what_the_others_do(stacks_of: Any) -> None:
    found = stacks_of(Job())

    assert {stack.frames[0] for stack in found} <= {READS, TRAINS}
    assert {other.thread for stack in found for other in stack.others} == {"MainThread"}


def test_a_recorder_that_answers_late_costs_no_stacks(stacks_of: Any) -> None:
    assert len(stacks_of(Job(answers_s=3.0))) >= sampling.FIRST
