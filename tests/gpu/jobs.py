"""A program of `programs/` as a job: bare, planned or attached to while it runs; and `probe` without a console script.

Program and test speak through files in a folder: the program leaves facts (NAME.json), the test tells it something (an
empty file NAME).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.commands import ROOT, plain
from support.waiting import until

__all__ = ["ATTACHED", "BARE", "PLANNED", "SAMPLE_ALL", "Job", "environment", "probe"]

PROGRAMS = Path(__file__).parent / "programs"
#: As the console script `probe` does it, which a plain folder does not have.
PROBE = [sys.executable, "-c", "from probe_cli.main import main; main()"]
BARE, PLANNED, ATTACHED = "bare", "planned", "attached"
#: The time limit of a test ends it earlier; these are for a CPU that is busy.
COMMAND_S, FACTS_S = 150.0, 300.0
SAMPLE_ALL = {"trace.every": "1", "trace.deep_every": "1", "trace.budget": "0"}


def environment(**more: str) -> dict[str, str]:
    """Ours with nothing of Probe set, the project on Python's path, and the programs of its dependencies on PATH."""
    unset = plain()
    folders = [str(ROOT), *filter(None, unset.get("PYTHONPATH", "").split(os.pathsep))]
    programs = [str(Path(sys.executable).parent), *(f"{folder}/bin" for folder in folders), unset.get("PATH", "")]
    return {
        **unset,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders)),
        "PATH": os.pathsep.join(programs),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # deterministic matrix products
        **more,
    }


def probe(*arguments: object, timeout_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
    """Run a command of Probe to its end."""
    return subprocess.run(
        [*PROBE, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s, env=environment()
    )


class Job:
    """One job; `start` returns when its program says that it is ready, and for an attached one after the attach."""

    def __init__(
        self,
        folder: Path,
        program: str,
        *arguments: object,
        device: str,
        way: str = BARE,
        settings: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.way, self.program = folder, way, program
        self.settings = dict(settings or {})
        folder.mkdir(parents=True)
        command = [sys.executable, *launcher, str(PROGRAMS / f"{program}.py"), *map(str, arguments)]
        command += ["--device", device, "--folder", str(folder)]
        chosen = dict(environ or {})
        if way == PLANNED:
            command = [*PROBE, "run", *command]
            chosen |= {f"PROBE_{name.replace('.', '_').upper()}": text for name, text in self.settings.items()}
            if launcher:
                chosen["PROBE"] = "all"
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(**chosen),
                start_new_session=True,
            )
        self._pids: list[int] = []

    @property
    def pid(self) -> int:
        """PID of the process that works, which under a launcher is another one."""
        return self._pids[0] if self._pids else self.process.pid

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def ready(self, name: str = "ready") -> dict[str, Any]:
        """Wait until the program is ready, and attach to it if that is its way."""
        facts = self.facts(name)
        self._pids = facts.get("pids") or [facts["pid"]]
        if self.way == ATTACHED:
            for pid in self._pids:
                done = probe(pid, "inject")
                assert done.returncode == 0, f"cannot attach: {done.stdout}{done.stderr}"
            if self.settings:
                self.configure(**self.settings)
            self.tell("attached")
        return facts

    def configure(self, **settings: str) -> None:
        """Change settings of its recorders."""
        for pid in self._pids:
            done = probe(pid, "config", *(f"{name}={text}" for name, text in settings.items()))
            assert done.returncode == 0, done.stderr

    def facts(self, name: str, timeout_s: float = FACTS_S) -> dict[str, Any]:
        """Wait for what the program has to say under this name."""
        path = self.folder / f"{name}.json"
        is_over = lambda: path.exists() or self.process.poll() is not None  # noqa: E731
        until(is_over, timeout_s, lambda: f"no {name} yet; it wrote:\n{self.tail()}")
        assert path.exists(), f"it has ended with {self.process.returncode} before {name}; it wrote:\n{self.tail()}"
        facts: dict[str, Any] = json.loads(path.read_text())
        return facts

    def tell(self, name: str) -> None:
        """Let the program know."""
        (self.folder / name).touch()

    def wait(self, timeout_s: float = FACTS_S) -> int:
        """Return its exit code."""
        return self.process.wait(timeout_s)

    def end(self, timeout_s: float = FACTS_S) -> dict[str, Any]:
        """Have it stop, and return its last facts."""
        self.tell("attached")
        self.tell("stop")
        facts = self.facts("final", timeout_s)
        self.wait(timeout_s)
        return facts

    def probe(self, *arguments: object, timeout_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Run a command of Probe about this job."""
        return probe(self.pid, *arguments, timeout_s=timeout_s)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a statement; it must be answered, be it with a reason why there are none."""
        done = self.probe("query", sql, "--format", "json")
        if done.returncode == 1 and "no rows" in done.stderr:
            return []
        assert done.returncode == 0, f"{sql}: {done.returncode}: {done.stderr}"
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def envelope(self, *arguments: object, timeout_s: float = COMMAND_S) -> dict[str, Any]:
        """Return the JSON that a command prints, whatever its verdict."""
        done = self.probe(*arguments, timeout_s=timeout_s)
        assert done.stdout.lstrip().startswith("{"), f"{arguments}: {done.returncode}: {done.stderr}"
        answer: dict[str, Any] = json.loads(done.stdout)
        return {**answer, "exit code": done.returncode}

    def kill(self) -> None:
        """End it and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def tail(self, size: int = 3000) -> str:
        """Return the end of its output."""
        return self.output[-size:]

    def diagnostics(self) -> str:
        """Return what to look at when a test of it has failed: its output, and the recorder's own failures."""
        parts = [f"{self.program}, {self.way}, pid {self.pid}, exit code {self.process.poll()}", self.tail()]
        if self.way != BARE:
            try:
                errors = self.probe("query", "SELECT * FROM probe.errors", "--format", "jsonl", timeout_s=20)
                parts.append(f"probe.errors:\n{errors.stdout}{errors.stderr}")
            except (subprocess.TimeoutExpired, OSError) as error:
                parts.append(f"probe.errors cannot be read: {error}")
        return "\n".join(parts)
