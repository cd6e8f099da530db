"""A measured program as a process: start it, have it run blocks, end it.

Runs in the benchmark's process; it sleeps in a pipe while a block runs, so it takes no CPU from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Block", "Program", "plain_environment", "tree_cpu_s"]

T = TypeVar("T")
PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Block:
    """The report of a program on a block: `pieces` (steps, or gaps of spin.py) only on request."""

    num_pieces: int
    wall_s: float
    cpu_s: float  #: of the whole process, our thread in it included
    thread_cpu_s: float  #: of the thread that ran the block
    instructions: int  #: of that thread, in user mode; 0 where they cannot be counted
    median_s: float
    longest_s: float
    pieces_ns: tuple[tuple[int, int], ...] = ()

    @property
    def per_piece_s(self) -> float:
        return self.wall_s / self.num_pieces

    def longest_within_s(self, begin_ns: int, end_ns: int) -> float:
        """Return the longest of the pieces that touch this period; 0 if none does."""
        lengths = [end - begin for begin, end in self.pieces_ns if end > begin_ns and begin < end_ns]
        return max(lengths, default=0) * 1e-9


class Program:
    """One running program of `programs/`. `about` is its report when it was ready."""

    def __init__(
        self,
        *arguments: str,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        name, *options = arguments
        self._process = subprocess.Popen(
            [python, str(PROGRAMS / f"{name}.py"), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**plain_environment(), **(environment or {})},
        )
        self.about = self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Return the PIDs of all its ranks."""
        return list(self.about.get("pids", [self.pid]))

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its ranks so far."""
        fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids)
        return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")

    def begin(self, **order: float) -> None:
        """Have it run a block; `end` waits for the result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def end(self) -> Block:
        """Wait for the block that was begun."""
        answer = self._answer()
        pieces = tuple((begin, end) for begin, end in answer.pop("pieces_ns", []))
        return Block(**answer, pieces_ns=pieces)

    def block(self, **order: float) -> Block:
        """Run one block."""
        self.begin(**order)
        return self.end()

    def while_running(self, act: Callable[[], T]) -> T:
        """Return the result of `act` while the program works, however long that takes."""
        self.begin(until_told=1)
        try:
            return act()
        finally:
            self.begin(steps=0, seconds=0)
            self.end()
            self.end()

    def close(self) -> None:
        """End it by ending its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:  # JSON from outside: whatever the program says
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")


def plain_environment() -> dict[str, str]:
    """Return our environment without variables that start Probe or another tool, and one thread for every library."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "PROBING"))}
    return {**kept, "OMP_NUM_THREADS": "1"}


def tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of all below it, living and ended; 0 once it has gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = {int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                    for child in (task / "children").read_text().split()}  # fmt: skip
    except OSError:
        return 0.0  # its parent has its time
    return sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(tree_cpu_s, children))
