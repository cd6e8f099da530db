"""Trains a small model, in one way or another: `leaking.py KIND FOLDER`; ends when FOLDER/stop exists.

leaking: each step keeps its loss with the graph behind it, and Python objects; the loader's worker keeps what it has
read. healthy: memory rises and falls again and again. It writes the size of its tensors, in bytes, to FOLDER/sizes, and
its losses to FOLDER/losses.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import torch

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
NUM_STEPS = int(sys.argv[3]) if len(sys.argv) > 3 else 10**9
PAUSE_S = 0.02
SIZE = 128

torch.manual_seed(0)
torch.set_num_threads(1)
history = []
notes = []
tooth = []


class Data(torch.utils.data.IterableDataset):
    """Batches; a worker that leaks keeps a copy of each."""

    def __init__(self) -> None:
        self.seen = []

    def __iter__(self):
        for number in itertools.count():
            if KIND == "leaking":
                self.seen.append(bytearray(800_000))  # leak in the worker
            yield torch.full((64, SIZE), (number % 7) / 7.0)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(SIZE, 512)
        self.norm = torch.nn.BatchNorm1d(512)
        self.outer = torch.nn.Linear(512, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.outer(self.norm(torch.relu(self.inner(batch))))


def keep(step: int) -> None:
    """Python objects that nobody takes back."""
    notes.append({f"{step}/{number}": [number] * 40 for number in range(30)})  # leak of objects


def saw(step: int) -> None:
    """100 MiB in 25 steps, then all of it is given back."""
    if step % 25 == 0:
        tooth.clear()
    tooth.append(bytearray(4 << 20))


def train() -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    workers = 1 if KIND == "leaking" else 0
    batches = iter(torch.utils.data.DataLoader(Data(), batch_size=None, num_workers=workers))
    with (FOLDER / "losses").open("w") as losses:
        for step in range(NUM_STEPS):
            batch = next(batches)
            optimizer.zero_grad(set_to_none=False)
            loss = (model(batch) ** 2).mean()  # line of the loss
            loss.backward()
            optimizer.step()
            if KIND == "leaking":
                loss = (model(batch) ** 2).mean()  # leak with its graph
                history.append(loss)
                keep(step)
            else:
                saw(step)
            losses.write(f"{loss.item()!r}\n")
            if step == 2:
                write_sizes(model, optimizer)
                print("ready", flush=True)
            if step % 10 == 0 and (FOLDER / "stop").exists():
                return
            time.sleep(PAUSE_S)


def write_sizes(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def bytes_of(tensors) -> int:
        return sum(one.numel() * one.element_size() for one in tensors)

    state = [value for kept in optimizer.state.values() for value in kept.values() if isinstance(value, torch.Tensor)]
    sizes = {
        "parameters": bytes_of(model.parameters()),
        "gradients": bytes_of(one.grad for one in model.parameters()),
        "buffers": bytes_of(model.buffers()),
        "optimizer state": bytes_of(state),
    }
    (FOLDER / "sizes").write_text(json.dumps(sizes))


if __name__ == "__main__":
    train()
