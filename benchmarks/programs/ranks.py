"""The other ranks of a measured job: each takes every step that rank 0 takes, and no other.

Runs in the measured programs, between blocks; gloo, with a file as the store.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist

__all__ = ["ONE_BY_ONE", "Ranks", "follow"]

#: What rank 0 tells instead of a number of steps: that it will ask before each one; that it has ended.
ONE_BY_ONE, THE_END = -1, -2


class Ranks:
    """Rank 0's handle on the others. `pids` are theirs and its own."""

    def __init__(self, num: int) -> None:
        """Start the others, with the arguments of this process, and wait for them."""
        store = os.path.join(tempfile.mkdtemp(), "store")
        self._others = [
            subprocess.Popen([sys.executable, *sys.argv, "--rank", str(rank), "--store", store], stdout=sys.stderr)
            for rank in range(1, num)
        ]
        self.pids = [os.getpid(), *(process.pid for process in self._others)]
        _join(0, num, store)

    def tell(self, number: int) -> None:
        """Announce that many steps, or one of the numbers above."""
        dist.broadcast(torch.tensor([number]), 0)

    def end(self) -> None:
        """Announce that there are no more blocks."""
        self.tell(THE_END)
        dist.destroy_process_group()
        for process in self._others:
            process.wait(60)


def follow(rank: int, num: int, store: str, make_step: Callable[[], Callable[[], object]]) -> None:
    """Run the other ranks: do what they are told."""
    _join(rank, num, store)
    take_step = make_step()

    def told() -> int:
        number = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(number, 0)
        return int(number)

    while (number := told()) != THE_END:
        if number == ONE_BY_ONE:
            while told():
                take_step()
        for _ in range(number):
            take_step()
    dist.destroy_process_group()


def _join(rank: int, num: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num)
