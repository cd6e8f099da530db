"""Jobs of several ranks that are slower than they have to be."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from faults.gallery import fault, mlp, regression, train
from faults.ranks import join, train_together
from faults.speed_faults import Slow

EXTRA_S = 0.06


@fault("rank-holds-up", num_ranks=2)
def a_rank_with_slow_data(healthy: bool) -> None:
    rank = join()

    def read(step: int) -> None:
        time.sleep(EXTRA_S if rank == 1 and not healthy else 0.0)

    train_together(before_forward=read)


@fault("rank-holds-up", num_ranks=3)
def a_rank_whose_forward_is_slow(healthy: bool) -> None:
    rank = join()

    def compute(step: int) -> None:
        time.sleep(EXTRA_S if rank == 2 and not healthy else 0.0)

    train_together(in_forward=compute)


@fault("rank-holds-up", num_ranks=2)
def a_rank_whose_optimizer_is_slow(healthy: bool) -> None:
    rank = join()

    def wait(step: int) -> None:
        time.sleep(EXTRA_S if rank == 1 and not healthy else 0.0)

    train_together(before_step=wait)


@fault("rank-holds-up", num_ranks=2)
def checkpoints_on_rank_zero_alone(healthy: bool) -> None:
    rank = join()

    def save(step: int) -> None:
        if rank == 0 and not healthy and step % 10 == 9:
            time.sleep(0.4)

    train_together(after_step=save)


def _samples() -> TensorDataset:
    batches = [batch for batch, _ in zip(regression(), range(32), strict=False)]
    return TensorDataset(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


@fault("same-order-each-epoch", num_ranks=2)
def a_sampler_that_is_never_told_the_epoch(healthy: bool) -> None:
    join()
    data = _samples()
    sampler: DistributedSampler[object] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in itertools.count():
        if healthy:
            sampler.set_epoch(epoch)
        train(model, optimizer, loader)


@fault("same-batches-on-ranks", num_ranks=2)
def ranks_that_shuffle_all_of_the_data_alike(healthy: bool) -> None:
    join()
    data = _samples()
    loader = DataLoader(data, batch_size=16, shuffle=not healthy, sampler=DistributedSampler(data) if healthy else None)
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in itertools.count():
        if healthy:
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        train(model, optimizer, loader)


class Stream(IterableDataset[Tensor]):
    """Windows of a text that is endless, of `num` streams the one with this number."""

    def __init__(self, number: int, num: int) -> None:
        self.number, self.num = number, num

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(5)
        for at in itertools.count():
            window = torch.randn(64, generator=generator)
            if at % self.num == self.number:
                yield window


@fault("same-batches-on-ranks", num_ranks=2)
def a_stream_that_is_not_divided_among_ranks(healthy: bool) -> None:
    join()
    stream = Stream(dist.get_rank(), dist.get_world_size()) if healthy else Stream(0, 1)
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.Adam(model.parameters())
    for inputs in DataLoader(stream, batch_size=16):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs[:, :1]).backward()
        optimizer.step()
        time.sleep(0.01)


class Added(torch.autograd.Function):
    """The sum over a group in forward, and the gradient as it is in backward."""

    @staticmethod
    def forward(ctx: object, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = parts.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class Split(nn.Module):
    """Two layers of which each rank of a group has a part of the features between them."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.read, self.write, self.group = nn.Linear(64, 32), nn.Linear(32, 32), group
        self.last = nn.Linear(32, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.last(Added.apply(self.write(torch.tanh(self.read(inputs))), self.group))
        return output


@fault("batches-differ-in-group", num_ranks=4)
def a_sampler_that_cuts_by_all_ranks(healthy: bool) -> None:
    rank = join()
    layers = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    model = Split(layers)
    data = _samples()
    cut = DistributedSampler(data, 2, rank // 2) if healthy else DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=cut)

    def average(step: int) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=replicas)

    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for epoch in itertools.count():
        cut.set_epoch(epoch)
        train(model, optimizer, loader, before_step=average)


@fault("waits-rotate", num_ranks=3)
def storage_that_is_slow_now_and_then(healthy: bool) -> None:
    chance = random.Random(join())

    def read(step: int) -> None:
        time.sleep(0.15 if not healthy and chance.random() < 0.25 else 0.0)

    train_together(before_forward=read)


class Costly(nn.Module):
    """Takes as long as it has samples."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(0.002 * len(inputs))
        output: Tensor = self.body(inputs)
        return output


@fault("uneven-batches", num_ranks=2)
def a_rank_with_larger_batches(healthy: bool) -> None:
    rank = join()
    batch = 32 if rank == 1 and not healthy else 8
    model = DistributedDataParallel(Costly())
    torch.manual_seed(rank)
    loader = DataLoader(Slow(), batch_size=batch)
    train(model, torch.optim.Adam(model.parameters()), loader)


@fault("collectives-dominate", num_ranks=2)
def much_to_exchange_and_little_to_compute(healthy: bool) -> None:
    join()
    # Adam would take half of the step.
    train_together(
        width=64 if healthy else 2048, pause_s=0.02 if healthy else 0.0, optimizer_of=partial(torch.optim.SGD, lr=1e-4)
    )


@fault("threads-oversubscribed", num_ranks=2)
def ranks_with_as_many_threads_as_the_host(healthy: bool) -> None:
    join()
    torch.set_num_threads(1 if healthy else 8)
    heavy = torch.randn(1024, 1024)

    def multiply(step: int) -> None:
        heavy @ heavy

    train_together(in_forward=multiply, pause_s=0.1 if healthy else 0.0)


@fault("collectives-dominate", num_ranks=2)
def gradients_that_are_exchanged_with_each_micro_batch(healthy: bool) -> None:
    join()
    model = DistributedDataParallel(mlp(width=512))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for number, (inputs, targets) in enumerate(regression(width=512, batch=4)):
        is_last = number % 8 == 7
        time.sleep(0.006)  # a model that computes
        with contextlib.nullcontext() if is_last or not healthy else model.no_sync():
            nn.functional.mse_loss(model(inputs), targets).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
