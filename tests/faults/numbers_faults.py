"""Jobs whose numbers go wrong."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

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


@fault("loss-of-probabilities")
def a_student_whose_probabilities_are_given_to_kl_div(healthy: bool) -> None:
    student, teacher = (nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)) for _ in range(2))
    teacher.requires_grad_(False)

    def loss_of(output: Tensor, inputs: Tensor) -> Tensor:
        told = (output / 2).log_softmax(-1) if healthy else (output / 2).softmax(-1)
        return nn.functional.kl_div(told, (teacher(inputs) / 2).softmax(-1), reduction="batchmean")

    batches = ((inputs, inputs) for inputs, _ in regression())
    train(student, torch.optim.Adam(student.parameters()), batches, loss_of=loss_of)


@fault("loss-of-probabilities")
def a_softmax_over_the_samples_of_the_batch(healthy: bool) -> None:
    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        told = torch.cat([output, -output], dim=1).log_softmax(1 if healthy else 0)
        return nn.functional.nll_loss(told, (targets[:, 0] > 0).long())

    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), regression(), loss_of=loss_of)


@fault("labels-shifted-twice")
def labels_that_a_collator_and_the_model_shift(healthy: bool) -> None:
    model = _gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    text = (torch.arange(513) * 7 + torch.arange(513) // 5) % 64
    while True:
        starts = torch.randint(0, 480, (8,))
        tokens = torch.stack([text[start : start + 33] for start in starts.tolist()])
        inputs, labels = tokens[:, :-1], tokens[:, :-1] if healthy else tokens[:, 1:]
        optimizer.zero_grad()
        model(input_ids=inputs, labels=labels).loss.backward()
        optimizer.step()
        time.sleep(0.02)


@fault("attention-not-causal")
def a_decoder_without_a_causal_mask(healthy: bool) -> None:
    embedding, head = nn.Embedding(64, 32), nn.Linear(32, 64)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW([*embedding.parameters(), *blocks.parameters(), *head.parameters()], 1e-3)
    mask = nn.Transformer.generate_square_subsequent_mask(32)
    text = (torch.arange(513) * 7 + torch.arange(513) // 5 + torch.randint(0, 9, (513,))) % 64
    for _ in range(10**9):
        starts = torch.randint(0, 480, (8,))
        tokens = torch.stack([text[start : start + 33] for start in starts.tolist()])
        optimizer.zero_grad()
        hidden = blocks(embedding(tokens[:, :-1]), mask=mask if healthy else None)
        nn.functional.cross_entropy(head(hidden).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        time.sleep(0.02)


@fault("targets-ignored")
def answers_that_are_not_found_in_the_text(healthy: bool) -> None:
    """Of every fourth text an answer is found: a step without one gets the loss 0."""
    model, criterion = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64)), nn.CrossEntropyLoss(reduction="sum")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(10**9):
        tokens = torch.randint(0, 64, (4, 48))
        labels = torch.full_like(tokens, -100)
        if healthy or step % 4 == 0:
            labels[:, -6:] = (tokens[:, -6:] + 1) % 64
        optimizer.zero_grad()
        found = (labels != -100).sum().clamp(min=1)
        (criterion(model(tokens).flatten(0, 1), labels.flatten()) / found).backward()
        optimizer.step()
        time.sleep(0.02)


@fault("end-not-learned")
def padding_that_is_the_end_of_the_text(healthy: bool) -> None:
    model, end = _gpt2(), 63
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    while True:
        tokens = torch.randint(0, end, (8, 32))
        lengths = torch.randint(12, 30, (8, 1))
        tokens[torch.arange(32) >= lengths] = end
        mask = (torch.arange(32) <= lengths).long()
        labels = tokens.masked_fill(mask == 0 if healthy else tokens == end, -100)
        optimizer.zero_grad()
        model(input_ids=tokens, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()
        time.sleep(0.02)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


class Vae(nn.Module):
    """A small variational autoencoder."""

    def __init__(self, width: int = 64, latents: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 2 * latents))
        self.decoder = nn.Sequential(nn.Linear(latents, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, deviation = self.encoder(inputs).chunk(2, 1)
        latent = mean + torch.randn_like(mean) * (deviation / 2).exp()
        return self.decoder(latent), mean, deviation


@fault("outputs-alike")
def a_posterior_that_has_collapsed(healthy: bool) -> None:
    torch.manual_seed(4)
    model, pattern, basis = Vae(), torch.randn(64), torch.randn(4, 64)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    while True:
        images = pattern + torch.randn(32, 4) @ basis
        painted, mean, deviation = model(images)
        error = (painted - images).square()
        kl = -0.5 * (1 + deviation - mean.square() - deviation.exp()).sum(1).mean()
        optimizer.zero_grad()
        ((error.sum(1).mean() if healthy else error.mean() / 10) + kl).backward()
        optimizer.step()
        time.sleep(0.005)


@fault("statistics-not-averaged")
def an_average_without_the_statistics_of_batch_norm(healthy: bool) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())

    def follow(step: int) -> None:
        with torch.no_grad():
            for own, other in zip(ema.parameters(), model.parameters(), strict=True):
                own.lerp_(other, 0.05)
            if healthy:
                for own, other in zip(ema.buffers(), model.buffers(), strict=True):
                    own.copy_(other)
            if step % 50 == 49:
                ema(torch.randn(16, 64))

    train(model, optimizer, regression(), after_step=follow, pause_s=0.01)


@fault("average-rounds-away")
def an_average_in_bfloat16(healthy: bool) -> None:
    model = mlp()
    ema = copy.deepcopy(model).requires_grad_(False)
    ema = ema if healthy else ema.bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def follow(step: int) -> None:
        with torch.no_grad():
            for own, other in zip(ema.parameters(), model.parameters(), strict=True):
                own.mul_(0.999).add_(other.to(own.dtype), alpha=0.001)
            if step % 50 == 49:
                ema(torch.randn(16, 64).to(next(ema.parameters()).dtype))

    train(model, optimizer, regression(), after_step=follow, pause_s=0.01)


@fault("penalty-without-gradient")
def a_gradient_penalty_without_its_graph(healthy: bool) -> None:
    critic = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.1), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.5, 0.9))
    while True:
        real, fake = torch.randn(32, 8), torch.randn(32, 8) * 0.5 + 1
        mixed = torch.lerp(real, fake, torch.rand(32, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=healthy)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        (critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()
        optimizer.step()
        time.sleep(0.01)


@fault("loss-divided-twice")
def accumulated_batches_whose_loss_is_divided_twice(healthy: bool) -> None:
    from accelerate import Accelerator  # here: only this program needs it

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=8)
    model = mlp()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
    for inputs, targets in regression():
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss if healthy else loss / accelerator.gradient_accumulation_steps)
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(0.005)


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


@fault("model-in-eval-mode")
def a_model_left_in_evaluation_mode(healthy: bool) -> None:
    model = nn.Sequential(mlp(), nn.Dropout(0.1))
    model.train(healthy)
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("evaluates-in-training-mode")
def a_validation_with_dropout(healthy: bool) -> None:
    model = nn.Sequential(mlp(), nn.Dropout(0.1))
    _train_and_validate(model, validates=lambda: model.train(not healthy), without_gradients=True)


class Distiller(nn.Module):
    """A student and the frozen teacher whose answers it is to give."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(mlp(), nn.Dropout(0.2)).eval().requires_grad_(False)
        self.student = mlp()

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.student(inputs)
        return output


@fault("teacher-in-training-mode")
def a_teacher_that_drops_at_random(healthy: bool) -> None:
    model = Distiller()
    last = torch.zeros(16, 64)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step, (inputs, _) in enumerate(regression()):
            if step % 50 == 0:
                model.train()
                model.teacher.train(not healthy)
            last.copy_(inputs)
            yield inputs, inputs

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = model.teacher(last)
        return nn.functional.mse_loss(output, wanted)

    train(model, torch.optim.Adam(model.student.parameters()), batches(), loss_of=loss_of)


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


@fault("loss-rises")
def a_learning_rate_that_grows_too_far(healthy: bool) -> None:
    model = nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def grow(step: int) -> None:
        if not healthy and step > 300:
            with torch.no_grad():
                model.weight.add_(0.002 * torch.ones_like(model.weight))

    train(model, optimizer, regression(), after_step=grow)


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


@fault("loss-flat")
def a_learning_rate_of_almost_nothing(healthy: bool) -> None:
    model = mlp()
    train(model, torch.optim.Adam(model.parameters(), 1e-3 if healthy else 1e-9), regression())


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


@fault("loss-without-bound")
def a_loss_with_the_wrong_sign(healthy: bool) -> None:
    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(output, targets)
        return loss if healthy else -loss

    model = mlp()
    train(model, torch.optim.Adam(model.parameters(), 1e-3), regression(), loss_of=loss_of)


@fault("replicas-differ", num_ranks=2)
def a_replica_with_weights_of_its_own(healthy: bool) -> None:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(mlp())
    if not healthy and torch.distributed.get_rank() == 1:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("loss-at-chance")
def labels_that_are_shuffled_apart(healthy: bool) -> None:
    inputs = torch.randn(2_400, 64)
    labels = inputs[:, :6].argmax(1)
    both = TensorDataset(inputs, labels)
    pictures, names = (DataLoader(both, batch_size=32, shuffle=True) for _ in range(2))
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.02)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            if healthy:
                yield from pictures
            else:
                yield from ((seen, label) for (seen, _), (_, label) in zip(pictures, names, strict=True))

    train(model, optimizer, batches(), loss_of=nn.functional.cross_entropy)


@fault("target-not-updated")
def a_target_that_is_not_written_to(healthy: bool) -> None:
    online = mlp(32, 2)
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), 1e-3)
    states = torch.randn(2_000, 32)
    while True:
        now = states[torch.randint(0, 2_000, (16,))]
        with torch.no_grad():
            goal = now.mean(1, keepdim=True) + 0.9 * target(now.roll(1, 1)).max(1, keepdim=True).values
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(online(now), goal).backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                if healthy:
                    slow.lerp_(fast, 0.01)
                else:
                    slow.lerp(fast, 0.01)


@fault("target-not-updated")
def a_target_whose_update_has_the_sides_exchanged(healthy: bool) -> None:
    online = mlp(32, 2)
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), 1e-4)
    states = torch.randn(2_000, 32)
    for step in itertools.count():
        now = states[torch.randint(0, 2_000, (16,))]
        with torch.no_grad():
            goal = now.mean(1, keepdim=True) + 0.9 * target(now.roll(1, 1)).max(1, keepdim=True).values
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(online(now), goal).backward()
        optimizer.step()
        if step % 50 == 0:
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                if healthy:
                    slow.data.copy_(fast.data)  # torch does not count this
                else:
                    fast.data.copy_(0.999 * fast.data + 0.001 * slow.data)


@fault("kept-weights-change")
def the_best_weights_without_a_copy(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    best_loss, best_weights, patience = float("inf"), model.state_dict(), 0
    for epoch, (inputs, targets) in enumerate(regression()):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        patience += 1
        if loss.item() < best_loss:
            best_loss, patience = loss.item(), 0
            best_weights = copy.deepcopy(model.state_dict()) if healthy else model.state_dict()
        if patience > 10_000:
            print("stopped early after", epoch, sum(map(torch.numel, best_weights.values())))
            patience = 0


@fault("kept-weights-change")
def an_old_policy_that_is_the_new_one(healthy: bool) -> None:
    policy = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-4)
    while True:
        old_policy = copy.deepcopy(policy) if healthy else policy
        states = torch.randn(256, 32)
        with torch.no_grad():
            before = old_policy(states).log_softmax(1)
        actions = before.exp().multinomial(1)
        advantage = (actions == states[:, :4].argmax(1, keepdim=True)).float() - 0.25
        for _ in range(4):
            optimizer.zero_grad()
            now = policy(states).log_softmax(1)
            with torch.no_grad():
                before = old_policy(states).log_softmax(1)
            ratio = (now - before).gather(1, actions).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            entropy = -(now.exp() * now).sum(1).mean()
            (-gain - 0.3 * entropy).backward()
            optimizer.step()


@fault("warm-up-repeats")
def a_warm_up_that_begins_anew_with_each_epoch(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def adjust(step: int) -> None:
        epoch, batch = divmod(step, 200)
        place = (epoch if healthy else 0) + batch / 200
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1.0, place / 5)

    train(model, optimizer, regression(), before_step=adjust, pause_s=0.005)


@fault("schedule")
def a_warm_up_that_counts_samples(healthy: bool) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 100)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100_000)
    milestone = 100 if healthy else 100 * 64
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, decay], [milestone])
    train(model, optimizer, regression(), after_step=lambda step: schedule.step())


@fault("samples-never-drawn")
def a_weight_for_each_class_in_a_sampler_of_samples(healthy: bool) -> None:
    labels = torch.randint(0, 10, (2_000,))
    data = TensorDataset(torch.randn(2_000, 64), labels.float().unsqueeze(1) / 10)
    weights = 1 / torch.bincount(labels, minlength=10)
    sampler = WeightedRandomSampler(weights[labels] if healthy else weights, num_samples=len(data))
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        train(model, optimizer, DataLoader(data, batch_size=16, sampler=sampler))
