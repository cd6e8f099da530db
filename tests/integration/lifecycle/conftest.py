"""A job that inspects itself, as a process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from inject.conftest import start
from support.commands import plain
from support.forked import Forked

from probe_cli.main import run

__all__ = ["start"]

PROGRAM = Path(__file__).parents[2] / "targets/lifecycle_training.py"


class Training:
    """A running `lifecycle_training.py`."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.folder = folder

    @property
    def num_steps(self) -> int:
        """Return the steps so far, as far as they have been written out."""
        return (self.folder / "losses0").read_text().count("\n")

    def finish(self) -> dict[str, Any]:
        """Tell it to stop; return its report. It must have ended well."""
        (self.folder / "stop").touch()
        output, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        said: dict[str, Any] = json.loads(output.splitlines()[-1])
        return said


@contextmanager
def training(kind: str, folder: Path, steps: int = 0, **environ: str) -> Iterator[Training]:
    """A job past its fifth step; killed at the end if it has not ended."""
    folder.mkdir(exist_ok=True)
    unset = plain()
    with Forked(
        [PROGRAM, kind, folder, steps],
        stdout=subprocess.PIPE,
        text=True,
        env={**unset, **environ},
    ) as process:
        try:
            yield Training(process, folder)
        finally:
            process.kill()


def wait_until_ready(one: Training) -> None:
    assert one.process.stdout is not None
    assert one.process.stdout.readline() == "ready\n"


@pytest.fixture
def probe(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run a command line; return its exit code, its output, its remarks."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        said = capfd.readouterr()
        return code, said.out, said.err

    return call
