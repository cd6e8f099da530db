"""Jobs of programs in `tests/targets`: started by torchrun, by ourselves or alone, told to end by a file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from .commands import ROOT
from .forked import Forked
from .ports import free_port

__all__ = ["MEET", "Ranks", "forked", "forked_ranks", "running", "target", "torchrun"]

MEET = ("--rdzv-endpoint=localhost:0", "--rdzv-backend=c10d")
END_S = 5.0


def target(name: str, *arguments: object) -> list[str]:
    """Return a program of `tests/targets` and its arguments."""
    return [str(ROOT / "tests" / "targets" / name), *map(str, arguments)]


def torchrun(num_ranks: int, program: Sequence[str], *, meet: Sequence[str] = MEET) -> list[str]:
    """Return the command that runs a program on so many ranks, all on this host."""
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={num_ranks}", *meet, *program]


class Job(Protocol):
    """What can end."""

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...


class Ranks:
    """The processes of a job, one a rank."""

    def __init__(self, processes: Sequence[Forked]) -> None:
        self.processes = processes

    def poll(self) -> int | None:
        """Return the first exit code that is not 0; else None while a rank runs, and 0 once all have ended."""
        codes = [process.poll() for process in self.processes]
        return next(filter(None, codes), None if None in codes else 0)

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for each; return what `poll` does then."""
        return next(filter(None, [process.wait(timeout) for process in self.processes]), 0)

    def terminate(self) -> None:
        for process in self.processes:
            process.terminate()


@contextmanager
def running(command: Sequence[str], folder: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job with its output in FOLDER/output. At the end it is told to stop by the file FOLDER/stop, and
    terminated if it does not."""
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
    with _told_to_stop(process, folder):
        yield process


@contextmanager
def forked(program: Sequence[str], folder: Path, environ: dict[str, str]) -> Iterator[Ranks]:
    """Run a job of one process the same way, without the variables of a launcher."""
    with (folder / "output").open("wb") as output:
        job = Ranks([Forked(program, stdout=output, stderr=output, env=environ)])
    with _told_to_stop(job, folder):
        yield job


@contextmanager
def forked_ranks(num_ranks: int, program: Sequence[str], folder: Path, environ: dict[str, str]) -> Iterator[Ranks]:
    """Run a job the same way, with ranks that have the variables of a launcher, but no launcher above them."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
    }
    with (folder / "output").open("wb") as output:
        how = {"stdout": output, "stderr": output}
        mine = [{**environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]
        job = Ranks([Forked(program, env=variables, **how) for variables in mine])
    with _told_to_stop(job, folder):
        yield job


@contextmanager
def _told_to_stop(job: Job, folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        (folder / "stop").touch()
        try:
            job.wait(END_S)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.wait(60)
