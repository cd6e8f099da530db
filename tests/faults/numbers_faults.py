"""Jobs whose numbers go wrong."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from faults.gallery import fault, mlp, regression, train


@fault("loss-not-finite")
def a_logarithm_of_a_negative_number(healthy: bool) -> None:
    model = mlp()
    seen = [0]

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        seen[0] += 1
        loss = nn.functional.mse_loss(output, targets)
        return loss if healthy or seen[0] < 100 else torch.log(-loss)

    train(model, torch.optim.SGD(model.parameters(), 1e-3), regression(), loss_of=loss_of)


@fault("loss-not-finite")
def a_learning_rate_that_makes_it_overflow(healthy: bool) -> None:
    model = nn.Linear(64, 1)
    train(model, torch.optim.SGD(model.parameters(), 1e-3 if healthy else 20.0), regression())


@fault("learning-rate-zero")
def a_schedule_at_its_end(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=10**7 if healthy else 100)
    train(model, optimizer, regression(), after_step=lambda step: schedule.step())


@fault("scaler-skips")
def gradients_that_overflow_the_scale(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step, (inputs, targets) in enumerate(regression()):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        if not healthy and step % 3 == 0:
            next(model.parameters()).grad[0, 0] = math.inf  # type: ignore[index]
        scaler.step(optimizer)
        scaler.update()


@fault("model-in-eval-mode")
def a_model_left_in_evaluation_mode(healthy: bool) -> None:
    model = nn.Sequential(mlp(), nn.Dropout(0.1))
    model.train(healthy)
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("parameters-without-optimizer")
def a_head_that_was_replaced_after_the_optimizer_was_made(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    if not healthy:
        model[-1] = nn.Linear(64, 1)
    train(model, optimizer, regression())


@fault("parameters-without-optimizer")
def an_optimizer_of_a_copy(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam((model if healthy else copy.deepcopy(model[:4])).parameters())
    train(model, optimizer, regression())


@fault("loss-rises")
def a_learning_rate_that_grows_too_far(healthy: bool) -> None:
    model = nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def grow(step: int) -> None:
        if not healthy and step > 300:
            with torch.no_grad():
                model.weight.add_(0.002 * torch.ones_like(model.weight))

    train(model, optimizer, regression(), after_step=grow)
