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


class _Call:
    """One call of a paced layer: its step, and when its backward began."""

    def __init__(self, owner: Paced) -> None:
        self.owner, self.step, self.began = owner, owner.truth.steps, 0.0


class _Enter(torch.autograd.Function):
    """Pass the input through; backward comes here last, after the layer's own operators."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, call: _Call) -> torch.Tensor:
        ctx.call = call
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        call = ctx.call
        of_step = "" if call.step == call.owner.truth.steps else " of the step before"
        call.owner.note("backward" + of_step, perf_counter() - call.began)
        return gradient, None


class _Leave(torch.autograd.Function):
    """Pass the output through; sleep in the backward, which comes here first."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, call: _Call) -> torch.Tensor:
        ctx.call = call
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.call.began = perf_counter()
        time.sleep(ctx.call.owner.backward_s)
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
        call = _Call(self)
        try:
            time.sleep(self.forward_s)
            if not inputs.requires_grad:  # backward has to come back to where the layer began
                inputs = inputs.detach().requires_grad_()
            return _Leave.apply(self.layer(_Enter.apply(inputs, call)), call)
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
