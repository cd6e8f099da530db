"""Ctrl-C: the request is cancelled on the server, and the command exits with 130."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from support.commands import environment
from support.waiting import until

from .conftest import small_server


def wait_for(text: str, file: Path) -> None:
    until(lambda: text in file.read_text(), says=lambda: f"{text!r} was not said")


@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("question", ["query", "eval"])
def test_ctrl_c_reaches_the_other_end(transport: str, question: str, tmp_path: Path) -> None:
    events, output = tmp_path / "events", tmp_path / "output"
    events.touch()
    words = ["query", "slow", "--timeout", "60"] if question == "query" else ["eval", "tick"]

    with (
        small_server("127.0.0.1:0" if transport == "tcp" else f"unix:{tmp_path}/s", events) as endpoint,
        output.open("w") as out,
        subprocess.Popen(
            ["probe", endpoint, *words], stdout=out, stderr=subprocess.PIPE, text=True, env=environment()
        ) as asking,
    ):
        wait_for("query began", events) if question == "query" else wait_for("tick 2", output)
        asking.send_signal(signal.SIGINT)
        _, said = asking.communicate(timeout=60)
        wait_for("query hung up" if question == "query" else "eval cancelled", events)

    assert (asking.returncode, said.strip()) == (130, "")  # an empty line ends the ^C a terminal shows
