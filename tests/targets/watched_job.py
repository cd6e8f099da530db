"""A data-parallel job to look at: the last rank is slow in some steps, the loss falls slowly, names try to be HTML.

Files in the folder named first change it while it runs: `slow` makes the last rank slow at every step, `hang` keeps
rank 1 from the next step, `stop` ends it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

#: Name of the third block and of a thread; for pictures one that is none.
HTML = sys.argv[2] if sys.argv[2:] else "<img src=x onerror=alert(1)>"
WIDTH = 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        batch = batch + self.attention(batch)
        return batch + self.mlp(batch)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({name: Block() for name in ("first", "second", HTML)})
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            batch = block(batch)
        return self.head(batch)


folder = Path(sys.argv[1])
torch.manual_seed(1)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20_000)
inputs = torch.randn(8192, WIDTH)
labels = (inputs[:, :16] + 2 * torch.randn(8192, 16)).argmax(1)
data = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
threading.Thread(target=threading.Event().wait, name=HTML, daemon=True).start()


def evaluate() -> None:
    with torch.no_grad():
        model(inputs[:256])


def save_checkpoint() -> None:
    if rank == 0:
        torch.save(model.state_dict(), folder / "checkpoint.pt")
    dist.barrier()


def wait_for_orders() -> None:
    while rank == 1 and (folder / "hang").exists():
        time.sleep(0.05)


def train_step(batch: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch), labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()


step = 0
while True:
    for batch, targets in data:
        is_slow = rank == dist.get_world_size() - 1 and ((folder / "slow").exists() or step % 40 in (20, 21, 22))
        time.sleep(0.04 + 0.06 * is_slow)
        wait_for_orders()
        train_step(batch, targets)
        step += 1
        if step % 200 == 0:
            evaluate()
            save_checkpoint()
        if (folder / "stop").exists():
            os._exit(0)
