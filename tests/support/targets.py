"""Jobs of programs in `tests/targets`: started by torchrun or alone, told to end by a file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .commands import ROOT

__all__ = ["MEET", "running", "target", "torchrun"]

MEET = ("--rdzv-endpoint=localhost:0", "--rdzv-backend=c10d")
END_S = 5.0


def target(name: str, *arguments: object) -> list[str]:
    """Return a program of `tests/targets` and its arguments."""
    return [str(ROOT / "tests" / "targets" / name), *map(str, arguments)]


def torchrun(num_ranks: int, program: Sequence[str], *, meet: Sequence[str] = MEET) -> list[str]:
    """Return the command that runs a program on so many ranks, all on this host."""
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={num_ranks}", *meet, *program]


@contextmanager
def running(command: Sequence[str], folder: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job with its output in FOLDER/output. At the end it is told to stop by the file FOLDER/stop, and
    terminated if it does not."""
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
    try:
        yield process
    finally:
        (folder / "stop").touch()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(60)
