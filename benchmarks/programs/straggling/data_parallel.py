"""DDP, with accumulated gradients and compiled, and FSDP."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from parts import Net, adam, batches, sgd
from planted import Planted
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

__all__ = ["accumulate", "compiled", "ddp", "fsdp"]


def ddp(planted: Planted) -> None:
    model = DistributedDataParallel(Net(planted))
    _train(planted, model, sgd(planted, model.parameters()))


def accumulate(planted: Planted) -> None:
    model = DistributedDataParallel(Net(planted, num_blocks=1))
    _train(planted, model, adam(planted, model.parameters()), num_micro=4)


def compiled(planted: Planted) -> None:
    model = torch.compile(DistributedDataParallel(Net(planted)))
    _train(planted, model, adam(planted, model.parameters()))


def fsdp(planted: Planted) -> None:
    model = Net(planted)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    _train(planted, model, adam(planted, model.parameters()))


def _train(planted: Planted, model: torch.nn.Module, optimizer: torch.optim.Optimizer, num_micro: int = 1) -> None:
    data = batches(planted)
    while True:
        optimizer.zero_grad()
        for micro in range(num_micro):
            batch = next(data)
            with model.no_sync() if micro < num_micro - 1 else nullcontext():
                model(batch).square().mean().backward()
        planted.pause("between")
        optimizer.step()
        planted.pause("after")
        planted.step_ends()
