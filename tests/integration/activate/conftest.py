"""Programs started with PROBE set, and the targets that result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.waiting import until

from probe_agent import activate
from probe_agent.recorder.ring import folder

ACTIVATE = Path(activate.__file__).parent
PATH_ENTRY = str(ACTIVATE / "path")
FOLDER = Path(folder.user_folder("/dev/shm", os.getuid()))

WAITS = """
import os, sys
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def targets() -> dict[int, dict[str, object]]:
    """Return what every target of this user reports about itself, by PID."""
    found = {}
    for path in FOLDER.glob("*/target.json"):
        try:
            identity = json.loads(path.read_text())
        except FileNotFoundError:
            continue  # somebody else's, detached meanwhile
        found[identity["pid"]] = identity
    return found


def is_chosen(pid: int) -> bool:
    """Return whether a process that runs its first line is, or is about to be, a target: its folder comes before that
    line."""
    return any(FOLDER.glob(f"{pid}-*"))


def wait_for_target(pid: int, timeout_s: float = 30.0) -> dict[str, object]:
    return until(lambda: targets().get(pid), timeout_s, lambda: f"{pid} did not become a target{_seen(pid)}") or {}


def _seen(pid: int) -> str:
    """Describe a process that should have become a target: its files, its stacks and its stderr."""
    files = sorted(str(path) for path in FOLDER.glob(f"{pid}-*/*"))
    dump = [str(Path(sys.executable).parent / "py-spy"), "dump", "--nonblocking", "--pid", str(pid)]
    stacks = subprocess.run(dump, capture_output=True, text=True)
    descriptor = os.open(f"/proc/{pid}/fd/2", os.O_RDONLY | os.O_NONBLOCK)  # a pipe of ours: what it says stays unread
    try:
        said = os.read(descriptor, 4096).decode()
    except BlockingIOError:
        said = "nothing"
    finally:
        os.close(descriptor)
    return f"; files: {files}; it said: {said}\n{stacks.stdout}{stacks.stderr}"


@contextmanager
def started(*command: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """The command with PROBE=1 and our sitecustomize first, as `probe run` starts it."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "PROBE": "1", "PYTHONPATH": PATH_ENTRY, **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    environment = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    return environment / "bin" / "python"
