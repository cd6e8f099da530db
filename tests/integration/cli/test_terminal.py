"""On a terminal: tables that fit, colour unless disabled, and an interactive repl."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.commands import environment


class Terminal:
    """A terminal with `probe` in it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def read_all(self) -> str:
        """Return everything until `probe` has ended."""
        while True:
            try:
                data = os.read(self.descriptor, 65536)
            except OSError:  # the other side has closed
                return self.seen
            self.seen += data.decode("utf-8", "replace")

    def read_until(self, pattern: str) -> str:
        deadline = time.monotonic() + 60
        while not re.search(pattern, self.seen):
            assert time.monotonic() < deadline, f"{pattern!r} did not come; seen: {self.seen!r}"
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    data = os.read(self.descriptor, 65536).decode("utf-8", "replace")
                except OSError:  # the other side has closed
                    data = ""
                self.seen += data
                # What a terminal answers when it is asked where its cursor is.
                if "\x1b[6n" in data:
                    self.type("\x1b[1;1R")
        return self.seen


@contextmanager
def terminal(*args: str, columns: int = 60, **more: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = environment(**{"TERM": "xterm-256color", **more})
    for size in ("COLUMNS", "LINES"):  # they would count for more than the terminal's own
        env.pop(size, None)
    with subprocess.Popen(
        ["probe", *args], stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(ours), process
        finally:
            process.kill()
            os.close(ours)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_a_table_fits_the_terminal(tcp: str) -> None:
    with terminal(tcp, "query", "many", "--max-rows", "3") as (screen, process):
        seen = screen.read_until("cut after 3 rows")
        assert process.wait(60) == 0

    lines = plain(seen).splitlines()
    assert max(len(line) for line in lines[:5]) == 60
    assert lines[2].endswith("…")
    assert "\x1b[1m" in seen


def test_no_color_is_respected(tcp: str) -> None:
    with terminal(tcp, "backtrace", NO_COLOR="1") as (screen, _):
        seen = screen.read_until("taken in 1 ms")

    assert "\x1b" not in seen


def test_binary_formats_are_refused_on_a_terminal(tcp: str) -> None:
    with terminal(tcp, "query", "rows", "--format", "arrow") as (screen, process):
        screen.read_until("not for a terminal")
        assert process.wait(60) == 2


def test_the_repl_completes_names_runs_blocks_and_remembers(tcp: str, tmp_path: Path) -> None:
    with terminal(tcp, "repl", XDG_STATE_HOME=str(tmp_path)) as (screen, process):
        screen.read_until(">>>")
        screen.type("train")
        screen.read_until(r">>>[\s\S]*train")
        screen.type("\t")
        screen.read_until(r"train\b[\s\S]*er\b")
        screen.type("\r")
        screen.read_until(r"'trainer'[\s\S]*>>>")
        screen.type("for i in x:\ry\r\r")
        screen.read_until(re.escape(repr("for i in x:\n    y")) + r"[\s\S]*>>>")
        screen.type("\x04")
        assert process.wait(60) == 0

    assert "+trainer" in (tmp_path / "probe" / "history").read_text().splitlines()


def test_ctrl_c_in_the_repl_stops_what_runs_and_not_the_repl(tcp: str, events: Path, tmp_path: Path) -> None:
    with terminal(tcp, "repl", XDG_STATE_HOME=str(tmp_path)) as (screen, process):
        screen.read_until(">>>")
        screen.type("tick\r")
        screen.read_until("tick 3")
        process.send_signal(2)
        screen.read_until(r"stopped[\s\S]*>>>")
        screen.type("after\r")
        screen.read_until(r"'after'[\s\S]*>>>")
        screen.type("\x04")
        assert process.wait(60) == 0

    assert "eval cancelled" in events.read_text()
