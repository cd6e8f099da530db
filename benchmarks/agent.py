"""The `probe` command as users run it, and the same calls without a new process if only the effect counts.

Runs in the benchmark's process. An attach for the sake of a block happens before that block begins.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import perf_counter

from probe_agent import inject

from .process import Program, plain_environment

__all__ = ["attach", "command", "detach", "timed_command"]

PROBE = str(Path(sys.executable).parent / "probe")
#: The console script, or what it does where Probe runs from a plain folder.
_COMMAND = [PROBE] if Path(PROBE).exists() else [sys.executable, "-c", "from probe_cli.main import main; main()"]


def command(*arguments: str) -> str:
    """Return what `probe ARGUMENTS` prints. Raises CalledProcessError when it fails."""
    done = subprocess.run(
        [*_COMMAND, *arguments], capture_output=True, text=True, env=plain_environment(), check=False, timeout=60
    )
    if done.returncode:
        raise RuntimeError(f"probe {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def timed_command(*arguments: str) -> float:
    """Return the seconds from the start of the `probe` process to its end."""
    began = perf_counter()
    command(*arguments)
    return perf_counter() - began


def attach(
    program: Program, settle_steps: int, settings: Mapping[str, object] | None = None, *, settle_s: float = 0.0
) -> None:
    """Put the recorder into all ranks of a program while it trains, apply the settings, and let it settle."""
    changes = {name: str(value) for name, value in (settings or {}).items()}
    for pid in program.pids:
        program.while_running(partial(inject.attach, pid))
        program.while_running(partial(_control, pid, op="config", changes=changes))
    if settle_s:
        program.block(seconds=settle_s)
    program.block(steps=settle_steps)


def detach(program: Program, settle_steps: int) -> None:
    """Detach it again while the program trains."""
    for pid in program.pids:
        program.while_running(partial(_control, pid, op="detach"))
        left = list(Path(f"/dev/shm/probe-{os.getuid()}").glob(f"{pid}-*"))
        assert not left, f"detach left {left}"
    program.block(steps=settle_steps)


def _control(pid: int, **request: object) -> None:
    """Send one request to the recorder of a process. Raises RuntimeError when it is refused."""
    folder = inject.attach(pid).folder  # it is there already
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(str(folder / "control.sock"))
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(connection.makefile("rb").readline())
    if "error" in answer:
        raise RuntimeError(f"{request} was refused: {answer}")
