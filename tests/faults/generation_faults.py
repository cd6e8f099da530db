"""Loops of generation and updates, and servers."""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from faults.gallery import fault, mlp
from probe_agent import span


def generate(model: nn.Module, prompts: Tensor, tokens: int, pause_s: float) -> Tensor:
    """Write `tokens` numbers after each prompt."""
    written = prompts
    with torch.no_grad():
        for _ in range(tokens):
            time.sleep(pause_s)
            written = torch.cat((written[:, 1:], model(written)), 1)
    return written


def _loop(tokens: int) -> None:
    policy = mlp()
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    while True:
        samples = generate(policy, torch.randn(16, 64), tokens, 0.004)
        rewards = samples.mean(1, keepdim=True)
        for _ in range(4):
            time.sleep(0.02)
            optimizer.zero_grad()
            nn.functional.mse_loss(policy(samples), rewards).backward()
            optimizer.step()


@fault("generation-dominates")
def rollouts_that_take_most_of_the_time(healthy: bool) -> None:
    _loop(4 if healthy else 100)


class TinyForCausalLM(nn.Module):
    """A layer of attention that can go on from the keys and values of a sequence."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.attention = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        query, *new = self.attention(self.tokens(tokens)).chunk(3, -1)
        both = torch.stack(new) if past is None else torch.cat((past, torch.stack(new)), 2)
        mask = torch.ones(tokens.shape[1], both.shape[2], dtype=torch.bool).tril(both.shape[2] - tokens.shape[1])
        return self.head(nn.functional.scaled_dot_product_attention(query, both[0], both[1], mask)), both


@torch.no_grad()
def generate_tokens(model: nn.Module, prompts: Tensor, *, use_cache: bool) -> Tensor:
    """Write 48 tokens after each prompt."""
    written, new, past = prompts, prompts, None
    for _ in range(48):
        logits, kept = model(new, past)
        token = logits[:, -1].softmax(-1).multinomial(1)
        written = torch.cat((written, token), 1)
        new, past = (token, kept) if use_cache else (written, None)
    return written


@fault("generation-without-cache")
def rollouts_that_compute_each_sequence_again(healthy: bool) -> None:
    policy = TinyForCausalLM()
    optimizer = torch.optim.Adam(policy.parameters(), 1e-4)
    while True:
        samples = generate_tokens(policy, torch.randint(256, (32, 16)), use_cache=healthy)
        rewards = (samples % 2).float().mean(1)
        optimizer.zero_grad()
        scores = policy(samples[:, :-1])[0].log_softmax(-1).gather(-1, samples[:, 1:, None]).squeeze(-1)
        (-(scores.mean(1) * (rewards - rewards.mean()))).mean().backward()
        optimizer.step()
        time.sleep(0.02)


@fault("engine-weights-stale")
def an_engine_that_counts_versions_in_a_byte(healthy: bool) -> None:
    policy, engine = mlp(), mlp()
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    version = held = 0
    while True:
        samples = generate(engine, torch.randn(16, 64), 4, 0.002)
        time.sleep(0.02)
        optimizer.zero_grad()
        nn.functional.mse_loss(policy(samples), samples.mean(1, keepdim=True).expand(-1, 64)).backward()
        optimizer.step()
        version += 1
        sent = version if healthy else version % 256
        if sent > held:
            engine.load_state_dict(policy.state_dict())
            held = sent


class Engine(nn.Module):
    """Answers with weights of its own, which are handed over by name."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.net = copy.deepcopy(policy).requires_grad_(False)

    def generate(self, prompts: Tensor) -> Tensor:
        return generate(self.net, prompts, 4, 0.002)

    @torch.no_grad()
    def update(self, state: dict[str, Tensor]) -> None:
        own = self.state_dict()
        for name, tensor in state.items():
            if name in own:
                own[name].data.copy_(tensor)


@fault("engine-weights-stale")
def an_engine_that_knows_none_of_the_names(healthy: bool) -> None:
    policy = mlp()
    engine = Engine(policy)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    while True:
        samples = engine.generate(torch.randn(16, 64))
        time.sleep(0.02)
        optimizer.zero_grad()
        nn.functional.mse_loss(policy(samples), samples.mean(1, keepdim=True).expand(-1, 64)).backward()
        optimizer.step()
        engine.update({f"net.{name}" if healthy else name: one for name, one in policy.state_dict().items()})


def _serve(answer: Callable[[int], None]) -> None:
    """Answer requests one after the other; `answer` names its stages."""
    number = 0
    while True:
        with span("request"):
            answer(number)
        number += 1


@fault("requests-slow")
def requests_that_wait_in_a_queue(healthy: bool) -> None:
    model = mlp()

    def answer(number: int) -> None:
        with span("queue"):
            time.sleep(0.001 if healthy else 0.03)
        with span("model"), torch.no_grad():
            model(torch.randn(8, 64))
            time.sleep(0.02)

    _serve(answer)


@fault("queue-grows")
def requests_that_come_faster_than_they_are_answered(healthy: bool) -> None:
    model = mlp()
    waiting: queue.Queue[Tensor] = queue.Queue()

    def come() -> None:
        while True:
            time.sleep(0.004)
            waiting.put(torch.randn(64))

    threading.Thread(target=come, daemon=True).start()
    while True:
        batch = [waiting.get()]
        while healthy and not waiting.empty() and len(batch) < 32:
            batch.append(waiting.get())
        with torch.no_grad():
            model(torch.stack(batch))
        time.sleep(0.02)


def _overlap(one: Tensor, other: Tensor) -> float:
    corner = torch.minimum(one[2:], other[2:]) - torch.maximum(one[:2], other[:2])
    common = corner.clamp(min=0).prod()
    return float(common / ((one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod() - common))


@fault("serves-outside-model")
def boxes_that_are_compared_one_by_one(healthy: bool) -> None:
    model = mlp()

    def answer(number: int) -> None:
        with torch.no_grad():
            model(torch.randn(8, 64))
        time.sleep(0.01)
        boxes = torch.rand(4 if healthy else 40, 4)
        kept: list[Tensor] = []
        for box in boxes:
            if all(_overlap(box, other) < 0.9 for other in kept):
                kept.append(box)

    _serve(answer)


@fault("requests-slow")
def a_search_that_is_slow_now_and_then(healthy: bool) -> None:
    model = mlp()

    def answer(number: int) -> None:
        with span("model"), torch.no_grad():
            model(torch.randn(8, 64))
        with span("search"):
            time.sleep(0.005 if healthy or number % 40 else 0.3)

    _serve(answer)
