"""TP x DP, 2 x 2: with torch's tensor.parallel and FSDP, and by hand with an all_reduce in the layer."""

from __future__ import annotations

import torch
import torch.distributed as dist
from parts import SIZE, adam, batches, hold
from planted import Planted
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

__all__ = ["by_hand", "tensor_parallel"]

TP = 2
NUM_LAYERS = 3


class Layer(nn.Module):
    """Two linear layers, the first split by columns and the second by rows."""

    def __init__(self, planted: Planted, inner: int) -> None:
        super().__init__()
        self.planted = planted
        self.up = nn.Linear(SIZE, inner)
        self.down = nn.Linear(inner, SIZE, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.up(value).relu()
        self.planted.pause("layer")
        return hold(self.planted, self.down(value))


class Net(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(SIZE, 1)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            value = layer(value)
        return self.head(value)


def tensor_parallel(planted: Planted) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size() // TP, TP), mesh_dim_names=("dp", "tp"))
    model = Net([Layer(planted, 4 * SIZE) for _ in range(NUM_LAYERS)])
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = adam(planted, model.parameters())
    data = batches(planted)
    while True:
        optimizer.zero_grad()
        model(next(data)).square().mean().backward()
        planted.pause("between")
        optimizer.step()
        planted.pause("after")
        planted.step_ends()


class SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, group):
        value = value.clone()
        dist.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, group):
        ctx.group = group
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class LayerByHand(Layer):
    def __init__(self, planted: Planted, group: dist.ProcessGroup) -> None:
        super().__init__(planted, 4 * SIZE // TP)
        self.group = group

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.up(SumBackward.apply(value, self.group)).relu()
        value = self.down(value)
        self.planted.pause("layer")
        return hold(self.planted, SumForward.apply(value, self.group))


def by_hand(planted: Planted) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    tp_groups = [dist.new_group(list(range(first, first + TP))) for first in range(0, size, TP)]
    dp_groups = [dist.new_group(list(range(at, size, TP))) for at in range(TP)]
    tp, dp = tp_groups[rank // TP], dp_groups[rank % TP]
    model = Net([LayerByHand(planted, tp) for _ in range(NUM_LAYERS)])
    optimizer = adam(planted, model.parameters())
    data = batches(planted)
    while True:
        optimizer.zero_grad()
        model(next(data)).square().mean().backward()
        planted.pause("between")
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(flat, group=dp)
        optimizer.step()
        planted.pause("after")
        planted.step_ends()
