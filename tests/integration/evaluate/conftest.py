"""Targets that serve the control socket, and a client of its protocol."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forked import Forked

TARGETS = Path(__file__).parents[2] / "targets"
PYTHONS = sorted(Path("/root/.pyenv/versions").glob("3.*/bin/python")) if os.access("/root", os.X_OK) else []
SUPPORTED = [path for path in PYTHONS if 9 <= int(path.parts[-3].split(".")[1]) <= 13] or [Path(sys.executable)]
ANSWER_S = 20.0


class Target:
    """A running program that answers on `path`."""

    def __init__(self, python: Path | str | None, script: str, *arguments: str, **environ: str) -> None:
        """Start `script` with `python`; without one, forked from a Python that has imported torch."""
        self._folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._folder.name, "control.sock")
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [str(TARGETS / script), self.path, *arguments]
        how: dict[str, Any] = {**pipes, "text": True, "env": {**os.environ, **environ}}
        self.process: subprocess.Popen[str]
        if python is None:
            self.process = Forked(command, **how)
        else:
            # A shell may have started the tests in the background, with Ctrl-C ignored.
            how["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
            self.process = subprocess.Popen([str(python), *command], **how)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready == "ready\n", (ready, self.process.stderr and self.process.stderr.read())

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(ANSWER_S)
        connection.connect(self.path)
        return connection

    def ask(self, op: str, **request: Any) -> list[dict[str, Any]]:
        """Return all lines of the answer."""
        with self.connect() as connection:
            connection.sendall(json.dumps({"op": op, **request}).encode() + b"\n")
            return list(lines(connection))

    def eval(self, code: str, **request: Any) -> Answer:
        return Answer(self.ask("eval", code=code, **request))

    def finish(self) -> tuple[str, str]:
        """End it; return its stdout (after `ready`) and stderr."""
        out, err = self.process.communicate("", timeout=ANSWER_S)
        assert self.process.returncode == 0, err
        return out, err

    def finish_by_itself(self) -> tuple[str, str]:
        """Wait until it ends; return its output."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        out, err = self.process.stdout.read(), self.process.stderr.read()
        assert self.process.wait(ANSWER_S) == 0, err
        return out, err

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self._folder.cleanup()


class Answer:
    """The lines of an eval, grouped by kind."""

    def __init__(self, answer: list[dict[str, Any]]) -> None:
        self.last = answer[-1]
        self.state = self.last.get("state")
        self.result = self.last.get("result")
        self.traceback = self.last.get("traceback")
        self.notes = [line["note"] for line in answer if "note" in line]
        self.stdout = "".join(line["text"] for line in answer if line.get("stream") == "stdout")
        self.stderr = "".join(line["text"] for line in answer if line.get("stream") == "stderr")


def lines(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield answer lines as they come, up to the last one."""
    with connection.makefile("r", encoding="utf-8") as answer:
        for line in answer:
            told = json.loads(line)
            yield told
            if told.get("done"):
                return
    raise AssertionError("the connection was closed before the answer was complete")


@pytest.fixture(params=SUPPORTED, ids=lambda path: path.parts[-3])
def any_python(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def start() -> Iterator[Callable[..., Target]]:
    """Start targets, and end them after the test."""
    started: list[Target] = []

    def start_target(*arguments: Any, **environ: str) -> Target:
        started.append(Target(*arguments, **environ))
        return started[-1]

    yield start_target
    for target in started:
        target.close()
