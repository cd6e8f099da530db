"""Modules and optimizers that take a given time, and modules that measure their own.

They sleep: a step is long enough to be measured on a busy machine, and its numbers are those of its layers.
"""

from __future__ import annotations

import time
from time import perf_counter
from typing import Any

import torch
from torch import nn
from truth import Truth


class _Backward(torch.autograd.Function):
    """Pass the input through; sleep in the backward."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, owner: Paced) -> torch.Tensor:
        ctx.owner, ctx.step = owner, owner.truth.steps
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        began = perf_counter()
        time.sleep(ctx.owner.backward_s)
        of_step = "" if ctx.step == ctx.owner.truth.steps else " of the step before"
        ctx.owner.note("backward" + of_step, perf_counter() - began)
        return gradient, None


class Paced(nn.Module):
    """A layer, slower by `forward_s` in forward and by `backward_s` in backward."""

    def __init__(self, truth: Truth, layer: nn.Module, forward_s: float = 0.003, backward_s: float = 0.004) -> None:
        super().__init__()
        self.layer = layer
        self.forward_s, self.backward_s = forward_s, backward_s
        self.truth = truth
        self.name = ""

    def note(self, stage: str, seconds: float) -> None:
        self.truth.calls.append((self.name, stage, self.truth.doing, self.truth.steps, seconds))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        began = perf_counter()
        try:
            time.sleep(self.forward_s)
            return _Backward.apply(self.layer(inputs), self)
        finally:  # what is computed again may be broken off as soon as there is enough of it
            self.note("forward", perf_counter() - began)


def named(root: nn.Module, name: str = "") -> nn.Module:
    """Return the model after telling its paced layers their names as the recorder writes them."""
    for path, module in root.named_modules():
        if isinstance(module, Paced):
            module.name = f"{name or type(root).__name__}.{path}" if path else name or type(root).__name__
    return root


def slow(optimizer: torch.optim.Optimizer, seconds: float = 0.005) -> Any:
    """Return the optimizer, with a slower step."""
    optimizer.register_step_pre_hook(lambda *_: time.sleep(seconds))
    return optimizer
