"""Progress is for a person at a terminal: a line on stderr while work lasts, and never a byte on stdout."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

WORK = """
import sys, time
import probe_cli.progress as shown
from probe_cli.messages import remark
if "--quiet" in sys.argv:
    shown.silence()
with shown.progress("counting", 3) as work, shown.progress(""):
    work.advance()
    waits_for_drawing = "--wait" in sys.argv
    deadline = time.monotonic() + 30
    while waits_for_drawing and shown._display._live is None and time.monotonic() < deadline:
        time.sleep(0.02)
    print("data", flush=True)
    remark("a remark")
"""


def work(*flags: str, terminal: bool) -> tuple[str, str]:
    """Return what the work prints on stdout and on stderr, which may be a terminal."""
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-c", WORK, *flags]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=theirs if terminal else subprocess.PIPE, text=True, timeout=60,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
        )  # fmt: skip
    finally:
        os.close(theirs)
    said = done.stderr if not terminal else ""
    while terminal:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other side has closed
            break
        said += data.decode()
    os.close(ours)
    return done.stdout, said


def test_long_work_is_drawn_on_a_terminal_and_gone_at_the_end() -> None:
    out, said = work("--wait", terminal=True)

    assert out == "data\n"
    assert "counting" in said
    assert "1/3" in said
    assert "a remark" in said
    assert "counting" not in said.rpartition("\x1b[2K")[2]  # the line was cleared, and not drawn again
    assert said.rpartition("\x1b[?25")[2].startswith("h")  # the cursor is shown again


@pytest.mark.parametrize(("flags", "terminal"), [((), True), (("--quiet",), True), ((), False)])
def test_short_work_a_pipe_and_quiet_see_nothing(flags: tuple[str, ...], terminal: bool) -> None:
    out, said = work(*flags, terminal=terminal)

    assert out == "data\n"
    assert said.split() == ["a", "remark"]
