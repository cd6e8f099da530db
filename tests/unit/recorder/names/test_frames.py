"""Locals are read, not kept."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from probe_agent.recorder.names import frames


class Thing:
    """An object that a weak reference can watch."""


def test_reading_a_local_does_not_keep_it_alive() -> None:
    watched, frame = _make_and_read()

    assert watched() is None
    assert frame is not None


def _make_and_read() -> tuple[Any, FrameType]:
    thing = Thing()
    frame = sys._getframe()
    values = frames.read(frame, ("thing",))
    assert values["thing"] is thing
    watched = weakref.ref(thing)
    del thing, values
    return watched, frame


def test_a_dictionary_that_the_job_got_from_locals_stays_unchanged() -> None:
    thing = Thing()
    kept = locals()

    frames.read(sys._getframe())

    assert kept["thing"] is thing


def test_the_globals_of_a_module_are_never_emptied() -> None:
    namespace: dict[str, Any] = {"sys": sys, "frames": frames, "before": 1}

    exec("found = frames.read(sys._getframe())", namespace)

    assert namespace["before"] == 1
    assert namespace["found"]["before"] == 1


def test_a_cheap_question_comes_before_a_value_is_read() -> None:
    inner = 1

    def closure() -> tuple[bool, bool, bool]:
        mine = inner
        frame = sys._getframe()
        return frames.defines(frame, "mine") and mine == 1, frames.defines(frame, "inner"), frames.defines(frame, "x")

    assert closure() == (True, True, False)
