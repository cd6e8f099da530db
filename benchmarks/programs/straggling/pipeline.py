"""A pipeline: by hand with send and recv (four stages, or two stages x two replicas), and torch's pipelining."""

from __future__ import annotations

import torch
import torch.distributed as dist
from parts import DATA_S, SIZE, Block, adam, batches, sgd
from planted import Planted
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

__all__ = ["by_hand", "by_hand_with_replicas", "pipelining"]

NUM_MICRO = 4
#: All stages wait while the first one loads its batch: with DATA_S that alone is a cost of 5 % that has a name.
FIRST_LOAD_S = DATA_S / 2


def by_hand(planted: Planted) -> None:
    _by_hand(planted, num_replicas=1)


def by_hand_with_replicas(planted: Planted) -> None:
    _by_hand(planted, num_replicas=2)


def _by_hand(planted: Planted, num_replicas: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    num_stages = size // num_replicas
    stage = rank // num_replicas
    groups = [dist.new_group(range(at * num_replicas, (at + 1) * num_replicas)) for at in range(num_stages)]
    before, after = rank - num_replicas, rank + num_replicas
    model = Block(planted)
    optimizer = sgd(planted, model.parameters())
    data = batches(planted, FIRST_LOAD_S)
    is_first, is_last = stage == 0, stage == num_stages - 1
    while True:
        optimizer.zero_grad()
        batch = next(data) if is_first or is_last else torch.zeros(8, SIZE)
        pairs = []
        for part in batch.chunk(NUM_MICRO):
            if is_first:
                value = part.clone()
            else:
                dist.recv(value := torch.zeros_like(part), before)
            value.requires_grad_()
            result = model(value)
            pairs.append((value, result))
            if not is_last:
                dist.send(result.detach(), after)
        for value, result in pairs:
            if is_last:
                result.square().mean().backward()
            else:
                dist.recv(gradient := torch.zeros_like(result), after)
                result.backward(gradient)
            if not is_first:
                dist.send(value.grad, before)
        planted.pause("between")
        if num_replicas > 1:
            flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            dist.all_reduce(flat, group=groups[stage])
        optimizer.step()
        planted.pause("after")
        planted.step_ends()


def pipelining(planted: Planted) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    model = Block(planted)
    stage = PipelineStage(model, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, NUM_MICRO, loss_fn=lambda output, target: (output - target).square().mean())
    optimizer = adam(planted, model.parameters())
    data = batches(planted, FIRST_LOAD_S)
    while True:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(next(data))
        elif rank == size - 1:
            schedule.step(target=next(data))
        else:
            schedule.step()
        planted.pause("between")
        optimizer.step()
        planted.pause("after")
        planted.step_ends()
