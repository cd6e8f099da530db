"""Jobs of several ranks on this host: the processes, their process group, and a loop that all ranks take part in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from faults.gallery import mlp

__all__ = ["LATE_S", "is_late", "join", "launch", "train_together"]

#: So long a program is healthy: a recorder that comes to it sees how fast it was.
LATE_S = 20.0
_BEGAN: list[float] = []


def launch(command: list[str], num_ranks: int) -> list[subprocess.Popen[bytes]]:
    """Start one process a rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            command,
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks),
                 "LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                 "GLOO_SOCKET_IFNAME": "lo"},
            stdout=sys.stderr,
        )
        for rank in range(num_ranks)
    ]  # fmt: skip


def join(timeout_s: float = 1800.0) -> int:
    """Join the job; return the rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    torch.manual_seed(1)
    return dist.get_rank()


def is_late() -> bool:
    """Whether it is time for the fault of a program that begins healthy: a while after this was first asked."""
    if not _BEGAN:
        _BEGAN.append(time.monotonic())
    return time.monotonic() - _BEGAN[0] > LATE_S


def train_together(
    *,
    before_forward: Callable[[int], object] = int,
    in_forward: Callable[[int], object] = int,
    before_step: Callable[[int], object] = int,
    after_step: Callable[[int], object] = int,
    width: int = 64,
    pause_s: float = 0.02,
    optimizer_of: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
) -> None:
    """A loop with DDP, one optimizer step a batch, until it is killed."""

    class Paused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(width)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            time.sleep(pause_s)
            in_forward(step)
            output: torch.Tensor = self.body(inputs)
            return output

    model = DistributedDataParallel(Paused())
    optimizer = optimizer_of(model.parameters())
    for step in range(10**9):
        optimizer.zero_grad()
        before_forward(step)
        model(torch.randn(16, width)).square().mean().backward()
        before_step(step)
        optimizer.step()
        after_step(step)


if __name__ == "__main__":  # NUM_RANKS COMMAND...
    ranks = launch(sys.argv[2:], int(sys.argv[1]))
    sys.exit(max(rank.wait() for rank in ranks))
