"""The lines that start the recorder, when another thread has taken the payload first."""

from __future__ import annotations

import _thread
import os
import sys
from pathlib import Path

from support.waiting import until

from probe_agent.inject import payload
from probe_agent.inject.threads.tracee import Tracee


def test_a_thread_whose_payload_another_has_emptied_is_silent(tmp_path: Path) -> None:
    """The first thread empties it between the second one's opening and reading."""
    (tmp_path / payload.PAYLOAD).touch()
    usual, before = sys.getswitchinterval(), _thread._count()

    exec(payload.lines(Tracee(os.getpid()), tmp_path, "test").rstrip(b"\0"), {})
    until(lambda: sys.getswitchinterval() == usual)
    until(lambda: _thread._count() == before)

    assert not os.path.lexists(tmp_path / payload.ERROR)
