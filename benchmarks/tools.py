"""Probe and `probing` 0.2.4 behind one interface for side_by_side.py.

`probing` runs its server and its SQL engine inside the training process, so it is queried there. It comes from PyPI
into a virtual environment of its own, and that environment's Python runs every measured program: Probe needs
nothing in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, sleep, time_ns

from . import agent
from .http_query import ask, free_port, host_server, post, wait_until_connected
from .process import Program, plain_environment

__all__ = ["ARMS", "PROBING", "Arm", "Asked", "install_probing", "refusal_of_probing"]

PROBING = "0.2.4"


@dataclass(frozen=True)
class Arm:
    """A tool in one of its settings. `every` is Probe's trace.every, `spec` what `probing` is told to profile."""

    name: str
    every: int | None = None
    activated: bool = False
    spec: str = ""

    @property
    def settings(self) -> dict[str, object]:
        """Return the settings of Probe; if every step is wanted, at any cost."""
        return {"trace.every": self.every, **({"trace.budget": 0} if self.every == 1 else {})}

    def environment(self, port: int = 0, ring_rows: int = 0) -> dict[str, str]:
        """Return the environment of the program."""
        found = {}
        if self.activated:
            found["PROBING"] = "1"
            if self.spec:
                found["PROBING_TORCH_PROFILING"] = self.spec
            if port:
                found["PROBING_PORT"] = str(port)
        elif ring_rows:
            found["PROBE_TRACE_ROWS"] = str(ring_rows)
        return found


ARMS = (
    Arm("bare"),
    Arm("Probe, default: all modules, one step in 20", every=20),
    Arm("Probe, all modules, every step", every=1),
    Arm(f"`probing` {PROBING}, activated, no profiling", activated=True),
    Arm(f"`probing` {PROBING}, `on`: one module a step", activated=True, spec="on"),
    Arm(f"`probing` {PROBING}, `random`: all modules, every step", activated=True, spec="random"),
)


@dataclass(frozen=True)
class Asked:
    """A job with a tool in it, and how to query that tool: over HTTP, and by its command (seconds of a process)."""

    training: Program
    connection: HTTPConnection
    http: Callable[[str], object]
    count: Callable[[str], int]
    command_s: Callable[[str], float]

    @staticmethod
    @contextmanager
    def start(arm: Arm, python: str, ring_rows: int) -> Iterator[Asked]:
        """Run the mlp with the tool in it until the end of the `with`."""
        port = free_port()
        with ExitStack() as stack:
            training = stack.enter_context(
                Program("blocks", python=python, environment=arm.environment(port, ring_rows))
            )
            pid = training.pid
            if arm.activated:
                yield _asked_probing(training, HTTPConnection("127.0.0.1", port), python)
                return
            agent.attach(training, 100, arm.settings)
            connection = stack.enter_context(host_server())["TCP"]
            yield Asked(
                training,
                connection,
                lambda sql: ask(connection, pid, sql),
                lambda sql: int(ask(connection, pid, sql)[0][0]),
                lambda sql: agent.timed_command(str(pid), "query", sql),
            )


def _asked_probing(training: Program, connection: HTTPConnection, python: str) -> Asked:
    wait_until_connected(connection)

    def http(sql: str) -> list[dict[str, list[int]]]:
        body = {
            "version": {"major": 0, "minor": 1, "patch": 0},
            "timestamp": time_ns() // 1000,
            "payload": {"expr": sql, "opts": None},
        }
        columns: list[dict[str, list[int]]] = post(connection, "/query", body)["payload"]["DataFrame"]["cols"]
        return columns

    def command_s(sql: str) -> float:
        began = perf_counter()
        _probing(python, "-t", str(training.pid), "query", sql, check=True)
        return perf_counter() - began

    return Asked(training, connection, http, lambda sql: http(sql)[0]["SeqI64"][0], command_s)


def install_probing() -> str:
    """Return the Python of a virtual environment with `probing` and our torch, made in the temporary folder if
    missing."""
    folder = Path(tempfile.gettempdir()) / f"benchmarks-probing-{PROBING}-{os.getuid()}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        torch = version("torch").partition("+")[0]
        for arguments in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", f"probing=={PROBING}", f"torch=={torch}", "numpy"],
        ):
            subprocess.run(arguments, check=True, stdout=sys.stderr)
        (folder / "complete").touch()
    return str(python)


def refusal_of_probing(python: str) -> str:
    """Return what `probing -t PID inject` prints about a running job; empty if it attaches."""
    with Program("blocks", python=python) as training:
        training.begin(steps=3_000)
        sleep(0.5)
        done = _probing(python, "-t", str(training.pid), "inject", check=False)
        training.end()
    return (done.stderr.strip().splitlines() or ["no message"])[-1].strip() if done.returncode else ""


def _probing(python: str, *arguments: str, check: bool) -> subprocess.CompletedProcess[str]:
    command = [str(Path(python).parent / "probing"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=plain_environment(), check=check, timeout=60)
