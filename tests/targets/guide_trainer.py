"""The training loop of both guide scripts: a small MLP on synthetic numbers, fed by worker processes.

The scripts differ only in where they keep `model`, `optimizer`, `trainer` and `train_loader`.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_SAMPLES = 4096


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop after this many")
    parser.add_argument("--stop-file", type=Path, help="stop when this file exists")
    parser.add_argument("--loss-log", type=Path, help="one line a step: its loss, exact, as hex")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after each step")
    return parser.parse_args()


def make_loader(num_workers: int) -> DataLoader[Any]:
    """Return a loader with the same samples in the same order in every run."""
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(NUM_SAMPLES, 32, generator=made)
    targets = inputs.square().sum(dim=1, keepdim=True)
    return DataLoader(
        TensorDataset(inputs, targets),
        batch_size=32,
        shuffle=True,
        num_workers=num_workers,
        prefetch_factor=2 if num_workers else None,
        persistent_workers=bool(num_workers),
        generator=torch.Generator().manual_seed(2),
    )


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


class Trainer:
    """A loop as in many projects; prints `ready` on stdout at step 5."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, train_loader: DataLoader[Any]) -> None:
        self.model = model
        self.optimizer = optimizer
        self.train_loader = train_loader
        self.grad_clip = 1.0
        self.current_step = 0

    def fit(self, arguments: argparse.Namespace) -> None:
        """Train until the last step or the stop file."""
        log = arguments.loss_log.open("w", buffering=1) if arguments.loss_log else None
        while True:
            for inputs, targets in self.train_loader:
                loss = self.training_step(inputs, targets)
                if log:
                    print(loss.hex(), file=log)
                if self.current_step == 5:
                    print("ready", flush=True)
                if self.current_step >= arguments.steps:
                    return
                if arguments.stop_file and arguments.stop_file.exists():
                    return
                if arguments.pause:
                    time.sleep(arguments.pause)

    def training_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Take one optimizer step; return the loss before it."""
        self.current_step += 1
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip)
        self.optimizer.step()
        return loss.item()

    def report(self) -> None:
        """Print the number of steps, and every parameter bit for bit."""
        parameters = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        digest = hashlib.sha256(bytes(parameters.view(torch.uint8).tolist())).hexdigest()
        print(f"finished: {self.current_step} steps, parameters {digest[:16]}", flush=True)
