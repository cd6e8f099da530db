"""What a nudge has the main thread do."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probe_agent.inject.nudge import nudge_lines
from probe_agent.recorder.guest.switch_interval import SHORT_S


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    usual = sys.getswitchinterval()
    yield
    sys.setswitchinterval(usual)


def run(folder: Path, within_s: float = 60.0) -> float:
    """Run the lines; return the interval that they leave, in seconds."""
    exec(nudge_lines(folder, time.monotonic() + within_s), {})
    return sys.getswitchinterval()


def test_it_is_short_while_a_recorder_is_there_to_restore_it(tmp_path: Path) -> None:
    usual = sys.getswitchinterval()

    assert run(tmp_path / "gone") == usual
    assert run(tmp_path, within_s=-1.0) == usual
    assert run(tmp_path) == pytest.approx(SHORT_S)


def test_a_recorder_that_leaves_meanwhile_leaves_the_jobs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It removes its folder and restores the interval while the GIL is free, before this thread sets it."""
    usual, looks = sys.getswitchinterval(), iter([True, False])
    monkeypatch.setattr("os.path.exists", lambda path: next(looks))

    assert run(tmp_path) == usual
