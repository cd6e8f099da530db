"""The list of faults, and the training that most of them spoil in one place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["FAULTS", "Fault", "fault", "mlp", "regression", "train"]

Program = Callable[[bool], None]


@dataclass(frozen=True)
class Fault:
    """`program(healthy)` trains until it is killed. `rule` is to be the headline of the faulty one, which goes wrong
    `begins_s` seconds after its start."""

    rule: str
    program: Program
    environ: dict[str, str]
    num_ranks: int
    begins_s: float = 0.0


FAULTS: dict[str, Fault] = {}


def fault(rule: str, *, num_ranks: int = 1, begins_s: float = 0.0, **environ: str) -> Callable[[Program], Program]:
    """Put a program into the list, under the name of its function. `environ` is set for the faulty one alone."""

    def put(program: Program) -> Program:
        FAULTS[program.__name__.replace("_", "-")] = Fault(rule, program, environ, num_ranks, begins_s)
        return program

    return put


def mlp(width: int = 64, depth: int = 3) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def regression(width: int = 64, batch: int = 16) -> Iterable[tuple[Tensor, Tensor]]:
    """Batches without end of a task that can be learned, but for some noise."""
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(width, 1, generator=generator) / width**0.5
    while True:
        inputs = torch.randn(batch, width, generator=generator)
        yield inputs, inputs @ weights + 0.1 * torch.randn(batch, 1, generator=generator)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    loss_of: Callable[[Tensor, Tensor], Tensor] = nn.functional.mse_loss,
    before_step: Callable[[int], object] = int,
    after_step: Callable[[int], object] = int,
    pause_s: float = 0.01,
) -> None:
    """A plain loop, one optimizer step a batch; the pause stands for a model that computes."""
    for step, (inputs, targets) in enumerate(batches):
        optimizer.zero_grad()
        output = model(inputs)
        time.sleep(pause_s)
        loss_of(output, targets).backward()
        before_step(step)
        optimizer.step()
        after_step(step)
