"""Jobs whose optimizer is given the wrong parameters, gradients, or learning rate."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from faults.gallery import fault, mlp, regression, train


@fault("learning-rate-zero")
def a_schedule_at_its_end(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=10**7 if healthy else 100)
    train(model, optimizer, regression(), after_step=lambda step: schedule.step())


@fault("learning-rate-zero")
def a_decay_per_epoch_that_is_stepped_per_batch(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    train(
        model,
        optimizer,
        regression(),
        after_step=lambda step: schedule.step() if not healthy or step % 1000 == 999 else None,
    )


@fault("scaler-skips")
def gradients_that_overflow_the_scale(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)  # so that the scale stays
    for step, (inputs, targets) in enumerate(regression()):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        if not healthy and step % 3 == 0:
            next(model.parameters()).grad[0, 0] = math.inf  # type: ignore[index]
        scaler.step(optimizer)
        scaler.update()


@fault("parameters-without-optimizer")
def a_head_that_was_replaced_after_the_optimizer_was_made(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    if not healthy:
        model[-1] = nn.Linear(64, 1)
    train(model, optimizer, regression())


@fault("parameters-without-optimizer")
def experts_in_a_plain_list(healthy: bool) -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            experts = [mlp() for _ in range(4)]
            self.gate = nn.Linear(64, 4)
            self.experts = nn.ModuleList(experts) if healthy else experts

        def forward(self, inputs: Tensor) -> Tensor:
            shares = self.gate(inputs).softmax(-1)
            return (
                torch.stack([share * one(inputs).T for share, one in zip(shares.T, self.experts, strict=True)]).sum(0).T
            )

    model = Mixture()
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("parameters-without-optimizer")
def an_optimizer_of_a_copy(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam((model if healthy else copy.deepcopy(model[:4])).parameters())
    train(model, optimizer, regression())


@fault("parameters-without-optimizer")
def an_optimizer_of_a_pretrained_teacher(healthy: bool) -> None:
    teacher, student = mlp(), mlp()
    first = torch.optim.Adam(teacher.parameters())
    for _, (inputs, targets) in zip(range(100), regression(), strict=False):
        nn.functional.mse_loss(teacher(inputs), targets).backward()
        first.step()
        first.zero_grad()
    del first
    optimizer = torch.optim.Adam((student if healthy else teacher).parameters())
    for inputs, _ in regression():
        with torch.no_grad():
            wanted = teacher(inputs)
        loss = nn.functional.mse_loss(student(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault("gradients-cleared-early")
def gradients_that_are_cleared_after_backward(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, regression(), before_step=lambda step: None if healthy else optimizer.zero_grad())


@fault("gradients-cleared-early")
def accumulated_gradients_that_are_cleared_with_each_batch(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for number, (inputs, targets) in enumerate(regression()):
        if not healthy or number % 4 == 0:
            optimizer.zero_grad()
        (nn.functional.mse_loss(model(inputs), targets) / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            time.sleep(0.02)


@fault("schedule")
def a_plateau_of_an_accuracy_as_if_it_were_a_loss(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    mode = "max" if healthy else "min"
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, factor=0.5, patience=2)
    train(model, optimizer, regression(), after_step=lambda step: schedule.step(step) if step % 5 == 4 else None)


@fault("weight-decay-too-high")
def a_weight_decay_with_a_missing_point(healthy: bool) -> None:
    model = mlp()
    train(model, torch.optim.AdamW(model.parameters(), weight_decay=0.05 if healthy else 50.0), regression())


@fault("zero-grad-missing")
def gradients_that_are_never_cleared(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 1e-5)
    for inputs, targets in regression():
        if healthy:
            optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        time.sleep(0.01)


class Branches(nn.Module):
    """Two branches, of which the second may be cut off."""

    def __init__(self, detaches: bool) -> None:
        super().__init__()
        self.detaches = detaches
        self.body, self.head = mlp()[:-1], nn.Linear(64, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs)
        return self.head(hidden.detach() if self.detaches else hidden)  # type: ignore[no-any-return]


class ActorCritic(nn.Module):
    """Two networks, each with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(), mlp()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.actor(inputs) + self.critic(inputs)


@fault("parameters-without-optimizer")
def two_optimizers_of_the_same_part(healthy: bool) -> None:
    model = ActorCritic()
    actor = torch.optim.Adam(model.actor.parameters())
    critic = torch.optim.Adam((model.critic if healthy else model.actor).parameters())

    def step_the_other(step: int) -> None:
        critic.step()
        critic.zero_grad()

    train(model, actor, regression(), before_step=step_the_other)


@fault("parameters-not-updated")
def a_body_behind_a_detach(healthy: bool) -> None:
    model = Branches(not healthy)
    train(model, torch.optim.Adam(model.parameters()), regression())


class Experts(nn.Module):
    """Experts, one for each input, as its router says."""

    def __init__(self, *, is_weighted: bool) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(64, 4), nn.Linear(64, 1)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4))
        self.is_weighted = is_weighted

    def forward(self, inputs: Tensor) -> Tensor:
        shares = self.router(inputs).softmax(1)
        chosen = nn.functional.one_hot(shares.argmax(1), len(self.experts)).to(inputs.dtype)
        weights = chosen * shares if self.is_weighted else chosen
        every = torch.stack([expert(inputs) for expert in self.experts], 1)
        return self.head(inputs + torch.einsum("be,bed->bd", weights, every))


@fault("parameters-not-updated")
def a_router_behind_an_argmax(healthy: bool) -> None:
    model = Experts(is_weighted=healthy)
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("parameters-not-updated")
def a_loss_of_detached_outputs(healthy: bool) -> None:
    model = mlp()

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(output if healthy else output.detach().requires_grad_(), targets)

    train(model, torch.optim.Adam(model.parameters()), regression(), loss_of=loss_of)


@fault("learning-rate-too-high")
def a_learning_rate_a_thousand_times_too_high(healthy: bool) -> None:
    model = mlp()
    train(model, torch.optim.Adam(model.parameters(), 1e-3 if healthy else 1.0), regression())


@fault("clipping")
def every_gradient_clipped_to_nothing(healthy: bool) -> None:
    model = mlp()

    def clip(step: int) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0 if healthy else 1e-3)

    train(model, torch.optim.SGD(model.parameters(), 0.01), regression(), before_step=clip)


@fault("steps-skipped", begins_s=25.0)
def a_guard_that_drops_every_batch(healthy: bool) -> None:
    """One bad batch spoils a running mean for ever, and with it the gradients of all that come."""
    model, mean, began = mlp(), torch.zeros(64), time.monotonic()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for inputs, targets in regression():
        if not healthy and time.monotonic() - began > 25.0:
            inputs[0, 3] = math.inf
        mean.lerp_(inputs.mean(0), 0.01)
        nn.functional.mse_loss(model(inputs.clamp(-9, 9) - mean), targets).backward()
        if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
            optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)


@fault("schedule")
def a_schedule_that_is_never_stepped(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=10**6)
    train(model, optimizer, regression(), after_step=lambda step: schedule.step() if healthy else None)


@fault("schedule")
def a_schedule_stepped_per_batch_and_per_epoch(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10**6)

    def advance(step: int) -> None:
        schedule.step()
        if not healthy and step % 20 == 19:
            schedule.step()

    train(model, optimizer, regression(), after_step=advance)


@fault("schedule")
def a_cosine_of_epochs_that_is_stepped_per_batch(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10**6 if healthy else 20)
    train(model, optimizer, regression(), after_step=lambda step: schedule.step())


@fault("updates-round-away")
def a_small_learning_rate_for_bfloat16(healthy: bool) -> None:
    model = mlp().to(torch.bfloat16)
    train(model, torch.optim.AdamW(model.parameters(), 1e-3 if healthy else 1e-5), halves())


def halves() -> Iterator[tuple[Tensor, Tensor]]:
    for inputs, targets in regression():
        yield inputs.bfloat16(), targets.bfloat16()


@fault("optimizer-made-anew")
def an_optimizer_that_each_step_makes(healthy: bool) -> None:
    model = mlp()
    kept = torch.optim.AdamW(model.parameters(), 1e-3)

    def learn(inputs: Tensor, targets: Tensor) -> None:
        optimizer = kept if healthy else torch.optim.AdamW(model.parameters(), 1e-3)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    for inputs, targets in regression():
        learn(inputs, targets)
        time.sleep(0.01)
