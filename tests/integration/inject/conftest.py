"""Real processes to attach to, and a way to detach again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

import pytest
from support.commands import plain

from probe_agent import inject

SITUATIONS = Path(__file__).with_name("situations.py")
LEFT_NOTHING = {"modules": [], "meta_path": 0, "main": [], "switch_interval": 0}


def installed_pythons() -> list[str]:
    """Return one interpreter per version and build: those of pyenv, the system's, and our own."""
    found = sorted((Path.home() / ".pyenv/versions").glob("3.*/bin/python"), key=lambda path: path.parts[-3])
    wanted = [str(path) for path in found if (3, 9) <= tuple(map(int, path.parts[-3].split(".")[:2])) <= (3, 13)]
    system = [path for path in ("/usr/bin/python3",) if os.access(path, os.X_OK)]
    return [*wanted, *system] or [sys.executable]


@dataclass
class Target:
    """A running program of situations.py."""

    process: subprocess.Popen[str]
    stop: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def finish(self, timeout_s: float = 30.0) -> dict[str, Any]:
        """Return its report: `result`, `took`, `left`. It must have ended by itself."""
        self.stop.touch()
        output, _ = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, self.process.returncode
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        return answer


@contextmanager
def situation(
    name: str,
    folder: Path,
    *,
    seconds: float = 2.0,
    python: str = sys.executable,
    prefix: tuple[str, ...] = (),
    **how: Any,
) -> Iterator[Target]:
    """A program that is ready; killed at the end if it has not ended."""
    stop = folder / f"stop-{name}-{monotonic()}"
    command = [*prefix, python, str(SITUATIONS), name, str(stop), str(seconds)]
    unset = plain()
    said = folder / f"{stop.name}.stderr"
    streams = {"stdout": subprocess.PIPE, "stderr": said.open("w"), "text": True, "env": unset}
    with streams["stderr"], subprocess.Popen(command, **{**streams, **how}) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield Target(process, stop)
        finally:
            process.kill()
    assert said.read_text() == "", "the target's stderr is for the target"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Target]]:
    """Start programs by name; all are killed at the end."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda name, **how: stack.enter_context(situation(name, tmp_path, **how))


def ask(folder: Path, operation: str, pid: int | None = None) -> dict[str, Any]:
    """Return the last line of the recorder's answer; help process `pid` to the GIL if it is silent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(str(folder / "control.sock"))
        connection.sendall(json.dumps({"op": operation}).encode() + b"\n")
        deadline = monotonic() + 30
        while pid is not None and monotonic() < deadline and not select([connection], [], [], 0.1)[0]:
            inject.wake(pid)
        answer: dict[str, Any] = json.loads(connection.makefile("rb").read().splitlines()[-1])
        return answer


def detach(attached: inject.Attached) -> None:
    """Detach the recorder."""
    folder = attached.folder
    if not folder.is_dir():
        folder = Path(f"/proc/{attached.pid}/root{folder}")
    answer = ask(folder, "detach", attached.pid)
    assert answer["done"] is True
    assert "threads_left" not in answer


def state(pid: int) -> str:
    """Return the kernel's letter for the state of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_asleep(pid: int) -> bool:
    return state(pid) == "S"


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child of ours and return its PID; it exits with 0, or 1 if it raised."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except Exception:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)  # the rest of pytest is not for this child
