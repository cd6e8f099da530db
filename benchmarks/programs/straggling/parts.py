"""Parts of the jobs: a loader, blocks, a network and an optimizer with places for planted delays."""

from __future__ import annotations

import torch
from planted import Planted
from torch import nn
from torch.utils.data import DataLoader, Dataset

__all__ = ["SIZE", "Block", "Net", "adam", "batches", "hold", "sgd"]

SIZE = 128
#: Asleep for most of a step, so that four ranks fit on two cores: ranks that compete for a CPU run faster while one of
#: them is kept waiting, and the measured cost is less than what was planted.
DATA_S, FORWARD_S, BACKWARD_S = 0.008, 0.006, 0.006


class Samples(Dataset):
    def __init__(self, planted: Planted, usual_s: float) -> None:
        self.planted, self.usual_s = planted, usual_s

    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.planted.pause("data", self.usual_s)
        return torch.full((8, SIZE), float(index % 7))


def batches(planted: Planted, usual_s: float = DATA_S):
    while True:
        yield from DataLoader(Samples(planted, usual_s), batch_size=None)


class Slow(torch.autograd.Function):
    """Pass the input on, and delay the gradient."""

    @staticmethod
    def forward(ctx, planted, value):
        ctx.planted = planted
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.planted.pause("backward", BACKWARD_S)
        return None, gradient


@torch.compiler.disable
def hold(planted: Planted, value: torch.Tensor) -> torch.Tensor:
    """Take the time of a block, forward and backward."""
    planted.pause("forward", FORWARD_S)
    return Slow.apply(planted, value)


class Block(nn.Module):
    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.planted = planted
        self.up = nn.Linear(SIZE, 2 * SIZE)
        self.down = nn.Linear(2 * SIZE, SIZE)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return hold(self.planted, self.down(self.up(value).relu()))


class Net(nn.Module):
    def __init__(self, planted: Planted, num_blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(planted) for _ in range(num_blocks))
        self.head = nn.Linear(SIZE, 1)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            value = block(value)
        return self.head(value)


def _slow(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    class Slower(kind):
        planted: Planted

        def step(self, closure=None):
            self.planted.pause("optimizer")
            return super().step(closure)

    return Slower


def adam(planted: Planted, parameters) -> torch.optim.Optimizer:
    made = _slow(torch.optim.AdamW)(parameters, lr=1e-4)
    made.planted = planted
    return made


def sgd(planted: Planted, parameters) -> torch.optim.Optimizer:
    made = _slow(torch.optim.SGD)(parameters, lr=1e-5)
    made.planted = planted
    return made
