"""A job of four ranks on gloo; one rank can be slowed down while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from support.commands import environment
from support.targets import Ranks, forked_ranks, target
from support.waiting import until

pytest.importorskip("torch")

from probe_agent.targets import TargetDirectory, newest_step
from probe_cli.main import run

NUM_RANKS = 4
NUM_STEPS = 60
START_S = 100.0
#: Rows of calls are written so much later than the steps that they are in: the newest steps are not compared yet.
LATE_S = 1.0


class Job:
    """The running job."""

    def __init__(self, folder: Path, process: Ranks) -> None:
        self.folder = folder
        self.process = process
        ready = [folder / f"ready-{rank}" for rank in range(NUM_RANKS)]
        self.until(lambda: all(path.exists() for path in ready), START_S)
        self.pids = [int(path.read_text()) for path in ready]

    def make(self, case: str) -> None:
        """Apply a case for as many steps as are compared: `nobody`, or what, rank and seconds."""
        (self.folder / "case.new").write_text(case)
        (self.folder / "case.new").rename(self.folder / "case")
        sleep(0.3)  # each rank reads it ten times a second
        enough = self.steps_done() + NUM_STEPS + 5
        self.until(lambda: self.steps_done() >= enough, 60.0)
        sleep(LATE_S)

    def steps_done(self) -> int:
        newest = [newest_step(target) for target in TargetDirectory().targets() if target.pid in self.pids]
        return min(step[0] if step else 0 for step in newest)

    def probe(self, *arguments: str) -> tuple[int, str, str]:
        """Run `probe` on all its ranks in this process; return its exit code, its output and its remarks."""
        named = [word for pid in self.pids for word in ("-t", str(pid))]
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run([*named, *arguments])
        return code, out.getvalue(), err.getvalue()

    def compare(self, *arguments: str, watch_s: int = 0) -> dict[str, Any]:
        """Return the JSON of `probe compare`; the exit code must match its verdict."""
        words = ("--steps", str(NUM_STEPS), "--watch", str(watch_s), "--format", "json")
        code, out, err = self.probe("compare", *words, *arguments)
        found: dict[str, Any] = json.loads(out)
        assert code == found["verdict"]["exit_code"], out + err
        return found

    def until(self, condition: Callable[[], object], timeout_s: float) -> None:
        until(condition, timeout_s, (self.folder / "output").read_text, self.process)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("job")
    (folder / "case").write_text("nobody")
    with forked_ranks(NUM_RANKS, target("straggling.py", folder), folder, environment()) as process:
        yield Job(folder, process)
