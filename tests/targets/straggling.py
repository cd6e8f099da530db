"""One rank of a gloo job of DDP or FSDP, started by torchrun; one rank can be slowed down while it runs.

    straggling.py FOLDER [fsdp]

Reads FOLDER/case now and then: `nobody`, or what is slow, which rank and by how many seconds, such as `data 2 0.05`.
What: `data` (a loader that sleeps), `forward` (a module that sleeps), `checkpoint` (a pause after the optimizer),
`backward` (a pause while gradients are computed). Writes FOLDER/ready-RANK with its PID after a few steps; ends when
there is a file `stop`. Rank 1 has different environment variables.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

import probe_agent

FOLDER = Path(sys.argv[1])
#: What every rank takes in each of these, so that there is something to be slower than.
USUAL_S = 0.003


class Case:
    """Return what is slow now on this rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.what, self.extra = "nobody", 0.0
        self.next_look = 0.0

    def look(self) -> None:
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + 0.1
        words = (FOLDER / "case").read_text().split()
        mine = len(words) == 3 and int(words[1]) == self.rank
        self.what, self.extra = (words[0], float(words[2])) if mine else ("nobody", 0.0)

    def pause(self, what: str, usual: float = 0.0) -> None:
        pause = usual + (self.extra if self.what == what else 0.0)
        if pause:
            time.sleep(pause)


class Samples(Dataset):
    def __init__(self, case: Case) -> None:
        self.case = case

    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.case.pause("data", USUAL_S)
        return torch.full((32,), float(index % 7))


class Slow(torch.autograd.Function):
    """Pass the input on, and delay the gradient."""

    @staticmethod
    def forward(ctx, case, value):
        ctx.case = case
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.case.pause("backward", USUAL_S)
        return None, gradient


class Block(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.linear = nn.Linear(64, 64)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.case.pause("forward", USUAL_S)
        return Slow.apply(self.case, self.linear(value))


class Net(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.block = Block(case)
        self.last = nn.Linear(64, 1)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.first(value)))


def sharded(net: Net) -> nn.Module:
    fully_shard(net.block)
    return fully_shard(net)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    case = Case(rank)
    if rank == 1:
        os.environ.update(NCCL_DEBUG="WARN", NCCL_API_KEY="hidden", UCX_HOME="http://me:hidden@host/")
    model = sharded(Net(case)) if "fsdp" in sys.argv[2:] else nn.parallel.DistributedDataParallel(Net(case))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    number = 0
    while True:
        for batch in DataLoader(Samples(case), batch_size=1):
            case.look()
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            case.pause("checkpoint")
            number += 1
            if number == 3 + 2 * rank:  # at another step in each, as an attach from outside would
                probe_agent.start()
            if number == 20:
                (FOLDER / f"ready-{rank}.new").write_text(str(os.getpid()))
                (FOLDER / f"ready-{rank}.new").rename(FOLDER / f"ready-{rank}")
            if (FOLDER / "stop").exists():
                os._exit(0)


if __name__ == "__main__":
    main()
