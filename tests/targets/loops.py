"""Loops without a torch optimizer: `loops.py FOLDER KIND`. Each runs alone, then once more under the recorder.

Between the two it continues slowly until FOLDER/go is there, and afterwards it waits for FOLDER/stop.
FOLDER/done.json has its own counts and times of the second run, and whether both gave the same bits.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

FOLDER, KIND = Path(sys.argv[1]), sys.argv[2]
NUM = 80
SECONDS = 0.005
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
        self.head = nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(SECONDS)  # a device that works meanwhile
        return self.head(torch.tanh(self.layers(x)))


class Told:
    """The counts, times and results of a run."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, float, bytes]] = []

    def call(self, net: nn.Module, number: int) -> torch.Tensor:
        x = torch.full((16, 64), 1.0 / (1 + number % 7))
        began = time.perf_counter()
        answer: torch.Tensor = net(x)
        self.calls.append((number, time.perf_counter() - began, answer.detach().numpy().tobytes()))
        return answer

    def digest(self) -> str:
        whole = hashlib.sha256()
        for _, _, output in sorted(self.calls):
            whole.update(output)
        return whole.hexdigest()


def by_hand(net: nn.Module, num: int, told: Told) -> None:
    for number in range(num):
        (told.call(net, number) ** 2).mean().backward()
        for p in net.parameters():
            p.data -= 1e-3 * p.grad
            p.grad = None


def evolution(net: nn.Module, num: int, told: Told) -> None:
    """Run ten candidates per generation; a step is a call."""
    with torch.no_grad():
        for generation in range(num // 10):
            noise = [torch.randn(p.shape) * 0.01 for p in net.parameters()]
            for number in range(10):
                told.call(net, generation * 10 + number)
            for p, change in zip(net.parameters(), noise, strict=True):
                p += change


@torch.no_grad()
def inference(net: nn.Module, num: int, told: Told) -> None:
    for number in range(num):
        told.call(net, number)


def pool(net: nn.Module, num: int, told: Told) -> None:
    """Run eight threads at once; gradients stay on, as in a careless server."""
    with ThreadPoolExecutor(8, "serve") as threads:
        list(threads.map(lambda number: told.call(net, number), range(num)))


def server(net: nn.Module, num: int, told: Told) -> None:
    """Serve four requests at a time on one event loop; the model takes about a tenth of the time."""

    async def request(numbers: asyncio.Queue[int]) -> None:
        while not numbers.empty():
            number = numbers.get_nowait()
            began = time.perf_counter()
            with torch.inference_mode():
                told.call(net, number)
            await asyncio.sleep(39 * (time.perf_counter() - began))

    async def serve() -> None:
        numbers: asyncio.Queue[int] = asyncio.Queue()
        for number in range(num):
            numbers.put_nowait(number)
        await asyncio.gather(*(request(numbers) for _ in range(4)))

    asyncio.run(serve())


def raw(net: nn.Module, num: int, told: Told) -> None:
    """Train without a module, `backward` or an optimizer, with another tensor after each update."""
    w = torch.ones(8, requires_grad=True)
    for number in range(num):
        began = time.perf_counter()
        (grad,) = torch.autograd.grad((w**2).sum(), w)
        w = (w - 0.01 * grad).detach().requires_grad_()
        time.sleep(SECONDS)
        told.calls.append((number, time.perf_counter() - began, w.detach().numpy().tobytes()))


def nothing(net: nn.Module, num: int, told: Told) -> None:
    """Run operations without a module or a gradient."""
    x = torch.ones(8)
    for number in range(num):
        x = torch.tanh(x * 1.01)
        time.sleep(SECONDS)
        told.calls.append((number, SECONDS, x.numpy().tobytes()))


KINDS: dict[str, Callable[[nn.Module, int, Told], None]] = {
    kind.__name__: kind for kind in (by_hand, evolution, inference, pool, server, raw, nothing)
}


def main() -> None:
    torch.manual_seed(7)
    net = Net()
    first = {name: value.clone() for name, value in net.state_dict().items()}

    def run(num: int) -> Told:
        """Run from the same weights and random numbers each time."""
        net.load_state_dict(first)
        torch.manual_seed(7)
        told = Told()
        KINDS[KIND](net, num // 2 if KIND == "server" else num, told)
        return told

    alone = run(NUM)
    print("ready", flush=True)
    while not (FOLDER / "go").exists():
        run(10)
        time.sleep(0.05)
    run(10)
    began = time.time()
    told = run(NUM)
    ended = time.time()
    run(10)
    done = {
        "began": began,
        "ended": ended,
        "num": len(told.calls),
        "seconds": sum(seconds for _, seconds, _ in told.calls),
        "is_same": told.digest() == alone.digest(),
    }
    (FOLDER / "done.new").write_text(json.dumps(done))
    (FOLDER / "done.new").rename(FOLDER / "done.json")
    while not (FOLDER / "stop").exists():
        if KIND == "pool":
            run(NUM)  # on a busy machine the thread that is sampled may have had no sampled step so far
        time.sleep(0.02)
    print("__call__" in vars(Net), flush=True)


main()
