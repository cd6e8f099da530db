"""A job that follows commands, and `probe` to profile it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support import commands
from support.commands import environment
from support.forked import Forked

SCRIPT = Path(__file__).parents[2] / "targets" / "profiled_training.py"
pytest.importorskip("torch")


class Training:
    """One such process, ready."""

    def __init__(self, *arguments: str, forked: bool = True) -> None:
        """Start it; the stacks of a forked one begin in the program that forks it."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        how: dict[str, Any] = {"text": True, **pipes}
        command = [str(SCRIPT), *arguments]
        self.process: subprocess.Popen[str]
        self.process = Forked(command, **how) if forked else subprocess.Popen([sys.executable, *command], **how)
        self.pid = str(self.process.pid)
        assert self.hear() == "ready"

    def hear(self) -> str:
        """Return the next line it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, command: str) -> str:
        """Return its answer to a command."""
        self.send(command)
        return self.hear()

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def probe(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run `probe PID …` to its end."""
        return run_probe(self.pid, *arguments, code=code)

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the rows that `probe PID …` gives as JSON."""
        found = json.loads(self.probe(*arguments, "--format", "json").stdout)
        assert isinstance(found, list)
        return found

    def start_probe(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `probe PID …`."""
        return subprocess.Popen(
            ["probe", self.pid, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def end(self) -> str:
        """End it cleanly; return its stderr."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return errors


def run_probe(*arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    done = commands.probe(*arguments)
    assert code is None or done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr)
    return done


Start = Callable[..., Training]


def _kill(training: Training) -> None:
    training.process.kill()
    training.process.communicate()


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    one = Training()
    yield one
    _kill(one)


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as running:

        def start_training(*arguments: str, forked: bool = True) -> Training:
            one = Training(*arguments, forked=forked)
            running.callback(_kill, one)
            return one

        yield start_training
