"""Jobs whose numbers go wrong."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

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


@fault("activations-dead")
def inputs_that_were_not_normalised(healthy: bool) -> None:
    torch.manual_seed(2)  # with some weights the loss grows instead
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    pixels = (((inputs * 64 + 128).clamp(0, 255), (targets > 0).long()[:, 0]) for inputs, targets in regression())
    train(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        ((inputs / 128 - 1 if healthy else inputs, classes) for inputs, classes in pixels),
        loss_of=nn.functional.cross_entropy,
    )


@fault("loss-of-probabilities")
def a_softmax_before_the_cross_entropy(healthy: bool) -> None:
    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        output = torch.cat([output, -output], dim=1)
        return nn.functional.cross_entropy(output if healthy else output.softmax(1), (targets[:, 0] > 0).long())

    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), regression(), loss_of=loss_of)


@fault("loss-broadcast")
def outputs_in_a_column_and_targets_in_a_row(healthy: bool) -> None:
    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        return (output - (targets if healthy else targets[:, 0])).square().mean()

    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), regression(), loss_of=loss_of)


@fault("first-batch-only")
def a_pass_over_the_data_that_begins_in_each_step(healthy: bool) -> None:
    batches = [batch for batch, _ in zip(regression(batch=1), range(512), strict=False)]
    samples = [(inputs[0], targets[0]) for inputs, targets in batches]
    loader = DataLoader(samples, batch_size=16)  # type: ignore[arg-type]

    def read() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            if healthy:
                yield from loader
            else:
                yield next(iter(loader))

    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), read())


@fault("gradients-zero")
def weights_that_are_rounded_without_a_way_around_it(healthy: bool) -> None:
    class Rounded(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            size = self.weight.detach().abs().max() / 127
            rounded = (self.weight / size).round() * size
            return nn.functional.linear(
                inputs, self.weight + (rounded - self.weight).detach() if healthy else rounded, self.bias
            )

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), Rounded(64, 64), nn.ReLU(), nn.Linear(64, 1))
    train(model, torch.optim.SGD(model.parameters(), 0.01), regression())


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


@fault("model-in-eval-mode")
def a_model_left_in_evaluation_mode(healthy: bool) -> None:
    model = nn.Sequential(mlp(), nn.Dropout(0.1))
    model.train(healthy)
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("evaluates-in-training-mode")
def a_validation_with_dropout(healthy: bool) -> None:
    model = nn.Sequential(mlp(), nn.Dropout(0.1))
    _train_and_validate(model, validates=lambda: model.train(not healthy), without_gradients=True)


@fault("evaluates-with-gradients")
def a_validation_that_keeps_its_activations(healthy: bool) -> None:
    model = mlp()
    # A bound `model.eval` would be that of before the recorder came.
    _train_and_validate(model, validates=lambda: model.eval(), without_gradients=healthy)


def _train_and_validate(model: nn.Module, *, validates: Callable[[], object], without_gradients: bool) -> None:
    batches = [batch for batch, _ in zip(regression(), range(20), strict=False)]

    def validate(step: int) -> None:
        if step % 50 == 49:
            validates()
            with torch.set_grad_enabled(not without_gradients):
                losses = [nn.functional.mse_loss(model(inputs), targets) for inputs, targets in batches]
                time.sleep(0.05)
            torch.stack(losses).mean().item()
            model.train()

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=validate)


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


@fault("loss-rises")
def a_learning_rate_that_grows_too_far(healthy: bool) -> None:
    model = nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def grow(step: int) -> None:
        if not healthy and step > 300:
            with torch.no_grad():
                model.weight.add_(0.002 * torch.ones_like(model.weight))

    train(model, optimizer, regression(), after_step=grow)


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


@fault("gradients-not-finite")
def a_root_of_nothing_behind_a_guard(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for inputs, targets in regression():
        optimizer.zero_grad()
        output = model(inputs)
        same = (output - output.detach()).square().sum() + (1e-8 if healthy else 0.0)
        (nn.functional.mse_loss(output, targets) + same.sqrt()).backward()
        if nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
            optimizer.step()
        time.sleep(0.01)


@fault("ddp-bypassed", num_ranks=2)
def a_model_that_is_called_past_its_wrapper(healthy: bool) -> None:
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(torch.distributed.get_rank())
    wrapped = nn.parallel.DistributedDataParallel(mlp())
    optimizer = torch.optim.Adam(wrapped.parameters())
    for _ in range(10**9):
        inputs = torch.randn(16, 64)
        optimizer.zero_grad()
        (wrapped if healthy else wrapped.module)(inputs).sub(inputs[:, :1]).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)


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


@fault("parameters-not-updated")
def a_body_behind_a_detach(healthy: bool) -> None:
    model = Branches(not healthy)
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("parameters-not-updated")
def a_loss_of_detached_outputs(healthy: bool) -> None:
    model = mlp()

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(output if healthy else output.detach().requires_grad_(), targets)

    train(model, torch.optim.Adam(model.parameters()), regression(), loss_of=loss_of)


@fault("loss-flat")
def a_learning_rate_of_almost_nothing(healthy: bool) -> None:
    model = mlp()
    train(model, torch.optim.Adam(model.parameters(), 1e-3 if healthy else 1e-9), regression())


@fault("learning-rate-too-high")
def a_learning_rate_a_thousand_times_too_high(healthy: bool) -> None:
    model = mlp()
    train(model, torch.optim.Adam(model.parameters(), 1e-3 if healthy else 1.0), regression())


@fault("layer-gradients")
def sigmoids_over_many_layers(healthy: bool) -> None:
    layers: list[nn.Module] = []
    for _ in range(12):
        layers += [nn.Linear(64, 64), nn.ReLU() if healthy else nn.Sigmoid()]
    model = nn.Sequential(*layers, nn.Linear(64, 1))
    for layer in layers[::2]:
        nn.init.kaiming_normal_(layer.weight) if healthy else nn.init.normal_(layer.weight, std=0.05)
    train(model, torch.optim.SGD(model.parameters(), 1e-4), regression())


@fault("gradients")
def weights_that_make_gradients_explode(healthy: bool) -> None:
    model = nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2 if healthy else 1e-9)

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(output, targets)

    def grow(step: int) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        if not healthy:
            with torch.no_grad():
                model.weight.mul_(1.03)

    train(model, optimizer, regression(), loss_of=loss_of, before_step=grow)


@fault("clipping")
def every_gradient_clipped_to_nothing(healthy: bool) -> None:
    model = mlp()

    def clip(step: int) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0 if healthy else 1e-3)

    train(model, torch.optim.SGD(model.parameters(), 0.01), regression(), before_step=clip)


@fault("loss-spikes")
def batches_with_wrong_labels_now_and_then(healthy: bool) -> None:
    model = mlp()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for number, (inputs, targets) in enumerate(regression()):
            yield inputs, targets if healthy or number % 60 else 1000 * torch.ones_like(targets)

    train(model, torch.optim.SGD(model.parameters(), 1e-6), batches())


@fault("loss-volatile")
def a_learning_rate_at_the_edge(healthy: bool) -> None:
    model = mlp()
    train(model, torch.optim.SGD(model.parameters(), 0.05 if healthy else 0.4), regression(batch=512))


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


@fault("loss-without-bound")
def a_loss_with_the_wrong_sign(healthy: bool) -> None:
    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(output, targets)
        return loss if healthy else -loss

    model = mlp()
    train(model, torch.optim.Adam(model.parameters(), 1e-3), regression(), loss_of=loss_of)


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


@fault("replicas-differ", num_ranks=2)
def a_replica_with_weights_of_its_own(healthy: bool) -> None:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(mlp())
    if not healthy and torch.distributed.get_rank() == 1:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    train(model, torch.optim.Adam(model.parameters()), regression())
