"""Ctrl-C: the request is cancelled on the server, and the command exits with 130."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.waiting import until

from .conftest import small_server

IN_PROCESS = """
import sys
sys.path.insert(0, {folder!r})
import probe_cli.client.connect as connect
from small_server import app
connect.local_app = lambda: app
connect.host_socket = lambda: "/nowhere"
from probe_cli.main import main
main()
"""


def wait_for(text: str, file: Path) -> None:
    until(lambda: text in file.read_text(), says=lambda: f"{text!r} was not said")


@pytest.mark.parametrize("transport", ["in-process", "unix", "tcp"])
@pytest.mark.parametrize("question", ["query", "eval"])
def test_ctrl_c_reaches_the_other_end(transport: str, question: str, tmp_path: Path) -> None:
    events, output = tmp_path / "events", tmp_path / "output"
    events.touch()
    words = ["query", "slow", "--timeout", "60"] if question == "query" else ["eval", "tick"]

    def ask(*command: str) -> tuple[int, str]:
        with (
            output.open("w") as out,
            subprocess.Popen(
                [*command, *words], stdout=out, stderr=subprocess.PIPE, text=True, env=environment(EVENTS=str(events))
            ) as asking,
        ):
            wait_for("query began", events) if question == "query" else wait_for("tick 2", output)
            asking.send_signal(signal.SIGINT)
            _, said = asking.communicate(timeout=20)
            return asking.returncode, said.strip()  # an empty line ends the ^C a terminal shows

    if transport == "in-process":
        script = tmp_path / "in_process.py"
        script.write_text(IN_PROCESS.format(folder=str(Path(__file__).parent)))
        outcome = ask(sys.executable, str(script), "-t", "201", "--no-inject")
    else:
        with small_server("127.0.0.1:0" if transport == "tcp" else f"unix:{tmp_path}/s", events) as endpoint:
            outcome = ask("probe", endpoint)
            wait_for("query hung up" if question == "query" else "eval cancelled", events)

    assert outcome == (130, "")
    wait_for("query hung up" if question == "query" else "eval cancelled", events)


def test_eval_is_streamed_as_it_is_printed_in_our_own_process(tmp_path: Path) -> None:
    script = tmp_path / "in_process.py"
    script.write_text(IN_PROCESS.format(folder=str(Path(__file__).parent)))
    command = [sys.executable, str(script), "-t", "201", "eval", "tick"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as asking:
        assert asking.stdout is not None
        lines = [asking.stdout.readline() for _ in range(3)]
        still_running = asking.poll() is None
        asking.kill()

    assert lines == ["tick 0\n", "tick 1\n", "tick 2\n"]
    assert still_running
