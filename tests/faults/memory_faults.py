"""Jobs that take more and more memory, or are close to a limit of it."""

from __future__ import annotations

import functools
import gc
import random
import resource
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from faults.gallery import fault, mlp, regression, train


@fault("graphs-kept")
def losses_kept_with_their_graphs(healthy: bool) -> None:
    model = mlp(512)
    history: list[Any] = []

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(output, targets)
        history.append(loss.item() if healthy else loss)
        return loss

    train(model, torch.optim.Adam(model.parameters()), regression(512, 64), loss_of=loss_of)


@fault("graphs-kept")
def a_mean_that_keeps_graphs(healthy: bool) -> None:
    model = mlp(512)
    means: dict[str, Any] = {"loss": 0.0, "penalty": 0.0}

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(output, targets)
        penalty = output.exp().logsumexp(1).square().mean()  # for the log alone: no backward frees what it has saved
        means["loss"] += loss.item()
        means["penalty"] = 0.99 * means["penalty"] + 0.01 * (penalty.item() if healthy else penalty)
        return loss

    train(model, torch.optim.Adam(model.parameters()), regression(512, 64), loss_of=loss_of)


class Bank(nn.Module):
    """Keys of earlier batches, as contrastive learning keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(512)
        self.register_buffer("keys", torch.zeros(4096, 512))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.encoder(inputs)
        return output


@fault("graphs-kept")
def a_memory_bank_that_keeps_graphs(healthy: bool) -> None:
    model = Bank()

    def remember(step: int) -> None:
        at = torch.randint(0, 4096, (64,))
        with torch.set_grad_enabled(not healthy):
            keys = model.encoder[:-1](torch.randn(64, 512))
            model.keys[at] = 0.5 * model.keys[at] + 0.5 * keys

    train(model, torch.optim.Adam(model.parameters()), regression(512, 64), after_step=remember)


class TooLong(Exception):
    """A batch that the model cannot take."""


@fault("graphs-kept")
def exceptions_that_are_kept(healthy: bool) -> None:
    model = mlp(512)
    rejected: list[Any] = []

    def checked(output: Tensor) -> Tensor:
        longest = output.square().sum(1).max()
        if random.random() < 0.2:
            raise TooLong(f"{longest:.3f}")
        return longest

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        try:
            checked(output)
        except TooLong as error:
            rejected.append(str(error) if healthy else error)
        return nn.functional.mse_loss(output, targets)

    train(model, torch.optim.Adam(model.parameters()), regression(512, 64), loss_of=loss_of)


class Node:
    """A tensor with its parent, which knows its children."""

    def __init__(self, state: Tensor, parent: Node | None = None) -> None:
        self.state, self.parent = state, parent
        self.children: list[Node] = []
        if parent is not None:
            parent.children.append(self)


@fault("cycles-uncollected")
def trees_without_a_collector(healthy: bool) -> None:
    if not healthy:
        gc.disable()
    model = mlp(512)

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        root = Node(output)
        for _ in range(100):
            Node(torch.randn(4096), root)
        return nn.functional.mse_loss(root.state, targets)

    train(model, torch.optim.Adam(model.parameters()), regression(512, 64), loss_of=loss_of)


@fault("container-grows")
def outputs_kept_in_a_list(healthy: bool) -> None:
    model = mlp(512)
    outputs: list[Tensor] = []

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        outputs.append(torch.randn(256, 512))
        if healthy and len(outputs) > 20:
            outputs.clear()
        return nn.functional.mse_loss(output, targets)

    train(model, torch.optim.Adam(model.parameters()), regression(512, 64), loss_of=loss_of)


@fault("container-grows")
def a_cache_without_an_end(healthy: bool) -> None:
    model = mlp()
    cache: dict[int, bytes] = {}

    def remember(step: int) -> None:
        cache[step % 50 if healthy else step] = bytes(500_000)

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=remember)


class Images(Dataset[Tensor]):
    """Each of 12 KB."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((3, 32, 32), index / 100_000)


@fault("container-grows")
def images_kept_as_views_of_their_batches(healthy: bool) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16), nn.ReLU(), nn.Linear(16, 1))
    hard: deque[Tensor] = deque(maxlen=8000)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for images in DataLoader(Images(), 64, shuffle=True, num_workers=1, drop_last=True):
            hard.append(images[0].clone() if healthy else images[0])
            yield images, images.mean((1, 2, 3)).unsqueeze(1) + torch.randn(64, 1)

    train(model, torch.optim.Adam(model.parameters()), batches())


@dataclass(eq=False)
class Sample:
    """One of those that are drawn by their priority."""

    observation: Tensor
    reward: float = 0.0


@fault("container-grows")
def priorities_of_samples_that_are_gone(healthy: bool) -> None:
    model = mlp()
    buffer: deque[Sample] = deque(maxlen=20)
    priorities: dict[Sample, float] = {}

    def add(step: int) -> None:
        if healthy and len(buffer) == buffer.maxlen:
            priorities.pop(buffer[0])
        buffer.append(Sample(torch.randn(100_000)))
        priorities[buffer[-1]] = 1.0

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=add)


@fault("container-grows")
def a_cached_function_without_a_bound(healthy: bool) -> None:
    model = mlp()

    @functools.lru_cache(maxsize=50 if healthy else None)
    def features(step: int) -> Tensor:
        return torch.randn(125_000)

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=features)


class Distances(nn.Module):
    """A bias of attention, made once for each length, or kept for each of them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.tables: dict[int, Tensor] = {}
        self.most = most

    def forward(self, value: Tensor) -> Tensor:
        number = len(self.tables) if len(self.tables) < self.most else random.randrange(self.most)
        if number not in self.tables:
            self.tables[number] = torch.zeros(256, 64)
        return value + self.tables[number][0]


@fault("container-grows")
def a_table_that_a_layer_keeps_for_each_length(healthy: bool) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(64, 64), Distances(16 if healthy else 10**9), nn.Tanh()), mlp())
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("container-grows")
def a_replay_without_an_end(healthy: bool) -> None:
    model = mlp()
    kept: list[Tensor] = []
    buffer = torch.empty(4000 if healthy else 1, 64_000)  # 1 GB, which is taken as it fills

    def remember(step: int) -> None:
        observed = torch.randn(64_000)
        if healthy:
            buffer[step % len(buffer)] = observed
        else:
            kept.append(observed)

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=remember)


class Hoard(Dataset[tuple[Tensor, Tensor]]):
    """Keeps what it has read."""

    def __init__(self, keeps: bool) -> None:
        self.keeps, self.kept = keeps, [b""]

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.keeps:
            self.kept.append(bytes(400_000) + bytes([index % 256]))
        return torch.randn(64), torch.randn(1)


@fault("memory-grows")
def workers_that_keep_what_they_read(healthy: bool) -> None:
    model = mlp()
    loader = DataLoader(Hoard(not healthy), batch_size=4, num_workers=2)
    train(model, torch.optim.Adam(model.parameters()), loader, pause_s=0.02)


@fault("memory-limit-near")
def a_limit_of_the_address_space(healthy: bool) -> None:
    model = mlp()
    taken = torch.zeros(1)
    if not healthy:
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (int(size * 1.08), resource.RLIM_INFINITY))
    train(model, torch.optim.Adam(model.parameters()), regression())
    del taken
