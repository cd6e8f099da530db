"""A job of two ranks in which a test plants a fault, and `probe` to find it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import environment, plain, probe
from support.forked import Forked
from support.targets import forked_ranks, target
from support.waiting import until

pytest.importorskip("torch")

NUM_RANKS = 2
Answer = dict[str, Any]  # JSON


class Job:
    """The ranks' processes; the job trains until its folder has a file `stop`."""

    def __init__(self, folder: Path, ranks: Sequence[Forked]) -> None:
        self.folder = folder
        self.ranks = ranks
        self._num = 0

    def plant(self, fault: str) -> None:
        """Return to the first weights, and train with `fault` on rank 1 from then on."""
        self._num += 1
        said = f"{fault} {self._num}"
        (self.folder / "fault.new").write_text(said)
        os.replace(self.folder / "fault.new", self.folder / "fault")

        def have_all() -> bool:
            read = [self.folder / f"fault-{rank}" for rank in range(NUM_RANKS)]
            return all(path.exists() and path.read_text() == said for path in read)

        until(have_all, 180, self.output)

    def recover(self) -> None:
        """Train without a fault, until no rank's newest recorded loss is of a step before: rows are written a moment
        after their step."""
        self.plant("none")
        newest = "SELECT isfinite(arg_max(loss, step)) AS is_finite FROM python.steps GROUP BY rank"

        def have_all() -> bool:
            done = probe("-t", str(self.ranks[0].pid), "--all", "query", newest, "--format", "json")
            rows = json.loads(done.stdout)["rows"] if done.returncode == 0 else []
            return len(rows) == NUM_RANKS and all(row["is_finite"] for row in rows)

        until(have_all, 60, self.output)

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def ask(self, *arguments: str) -> tuple[int, Answer]:
        """Ask all ranks; return the exit code and the JSON."""
        done = probe("-t", str(self.ranks[0].pid), "--all", *arguments, "--json")
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the same, and return at once."""
        command = ["probe", "-t", str(self.ranks[0].pid), "--all", *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), bufsize=1
        )


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Job]:
    """Run tests/targets/planted_nan.py."""
    folder.mkdir(parents=True, exist_ok=True)
    with forked_ranks(NUM_RANKS, target("planted_nan.py", folder, *arguments), folder, plain()) as ranks:
        yield Job(folder, ranks.processes)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with started(tmp_path_factory.mktemp("job")) as job:
        job.plant("none")
        yield job
