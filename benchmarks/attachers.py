"""Probe and the other tools that attach to a running Python process, behind one interface: attach and get an answer.

Each of the others is installed from PyPI into its own virtual environment, in the temporary folder if missing; the
programs run on that environment's Python. gdb, which two of them call, is the system's.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from . import agent
from .http_query import free_port
from .process import plain_environment
from .tools import PROBING

__all__ = ["ATTACHERS", "Attacher", "NotInstalled"]

#: A tool that has not answered by then has failed.
PATIENCE_S = 30.0


class NotInstalled(Exception):
    """The tool cannot be installed here."""


@dataclass(frozen=True)
class Attacher:
    """A tool. `attach(bin, pid, file)` returns when the process has answered; `file` is free for its use."""

    name: str
    attach: Callable[[Path, int, Path], None]
    package: str = ""

    def install(self) -> Path:
        """Return the folder of its programs, including `python`."""
        if not self.package:
            return Path(sys.executable).parent
        name = self.package.replace("==", "-")
        folder = Path(tempfile.gettempdir()) / f"benchmarks-attach-{name}-{os.getuid()}"
        if not (folder / "complete").exists():
            # Not by links: `probing` looks for its library beside the file of the interpreter.
            venv.EnvBuilder(symlinks=False, with_pip=True, clear=True).create(folder)
            command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", self.package]
            done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise NotInstalled((done.stderr.strip().splitlines() or ["pip failed"])[-1])
            (folder / "complete").touch()
        return folder / "bin"


def _run(*command: str | Path) -> None:
    """Run it and what it starts, for a limited time. Raises RuntimeError when it fails."""
    process = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=plain_environment(), preexec_fn=os.setpgrp, errors="replace",
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise RuntimeError(f"no answer within {PATIENCE_S:g} s") from None
    if process.returncode:
        raise RuntimeError((output.strip().splitlines() or [f"it ended with {process.returncode}"])[-1].strip())


def _probe(folder: Path, pid: int, file: Path) -> None:
    agent.command(str(pid), "query", "SELECT 1")


def _hypno(folder: Path, pid: int, file: Path) -> None:
    _run(folder / "hypno", str(pid), f"open({str(file)!r}, 'w').close()")
    deadline = monotonic() + PATIENCE_S
    while not file.exists():
        if monotonic() > deadline:
            raise RuntimeError(f"its code has not run within {PATIENCE_S:g} s")
        sleep(0.001)


def _memray(folder: Path, pid: int, file: Path) -> None:
    _run(folder / "memray", "attach", "--output", file, str(pid))


def _debugpy(folder: Path, pid: int, file: Path) -> None:
    port = free_port()
    _run(folder / "python", "-m", "debugpy", "--listen", f"127.0.0.1:{port}", "--pid", str(pid))
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        if not connection.recv(1):  # its adapter speaks first
            raise RuntimeError("its adapter has hung up")


def _probing(folder: Path, pid: int, file: Path) -> None:
    library = folder / "libprobing.so"
    if not library.exists():  # not in the wheel under this name; without it: "No such file or directory"
        shutil.copy(next(folder.parent.glob("lib/python*/site-packages/probing/_core.abi3.so")), library)
    _run(folder / "probing", "-t", str(pid), "inject")
    _run(folder / "probing", "-t", str(pid), "query", "SELECT 1")


ATTACHERS = (
    Attacher("Probe", _probe),
    Attacher("`hypno` 1.1.0", _hypno, "hypno==1.1.0"),
    Attacher("`memray attach` 1.20.0", _memray, "memray==1.20.0"),
    Attacher("debugpy 1.8.22", _debugpy, "debugpy==1.8.22"),
    Attacher(f"`probing` {PROBING}, library by hand", _probing, f"probing=={PROBING}"),
)
