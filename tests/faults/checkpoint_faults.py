"""Jobs whose checkpoints are slow, fail, or do not hold what a resume needs."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from faults.gallery import fault, mlp, regression, train


class _Slow:
    """A file of a slow disk."""

    def __init__(self, file: Any, bytes_a_second: float) -> None:
        self._file, self._speed = file, bytes_a_second

    def write(self, data: Any) -> int:
        time.sleep(len(data) / self._speed)
        return int(self._file.write(data))

    def flush(self) -> None:
        self._file.flush()


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="faults-"))


def _state(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


@fault("checkpoint-slow")
def checkpoints_on_a_slow_disk(healthy: bool) -> None:
    model, path = mlp(256), _folder() / "checkpoint.pt"
    optimizer = torch.optim.Adam(model.parameters())

    def save(step: int) -> None:
        if step % 50 == 49:
            with path.open("wb") as file:
                torch.save(_state(model, optimizer, step), file if healthy else _Slow(file, 3e6))

    train(model, optimizer, regression(256), after_step=save)


@fault("checkpoint-slow")
def a_checkpoint_in_each_step(healthy: bool) -> None:
    model, path = mlp(512), _folder() / "checkpoint.pt"
    optimizer = torch.optim.Adam(model.parameters())

    def save(step: int) -> None:
        if step % (500 if healthy else 1) == 0:
            torch.save(_state(model, optimizer, step), path)

    train(model, optimizer, regression(512), after_step=save)


@fault("checkpoint-failed")
def checkpoints_into_a_folder_that_is_gone(healthy: bool) -> None:
    model, folder = mlp(), _folder()
    optimizer = torch.optim.Adam(model.parameters())

    def save(step: int) -> None:
        if step % 100 == 99:
            try:
                torch.save(_state(model, optimizer, step), (folder if healthy else folder / "gone") / "checkpoint.pt")
            except (OSError, RuntimeError) as error:
                print("checkpoint failed:", error, file=sys.stderr)

    train(model, optimizer, regression(), after_step=save)


@fault("checkpoint-failed")
def checkpoints_onto_a_full_disk(healthy: bool) -> None:
    model, path = mlp(), _folder() / "checkpoint.pt"
    optimizer = torch.optim.Adam(model.parameters())

    def save(step: int) -> None:
        if step % 100 == 99:
            try:
                with open(path if healthy else "/dev/full", "wb") as file:
                    torch.save(_state(model, optimizer, step), file)
            except (OSError, RuntimeError) as error:
                print("checkpoint failed:", error, file=sys.stderr)

    train(model, optimizer, regression(), after_step=save)


@fault("checkpoint-incomplete")
def checkpoints_of_the_weights_alone(healthy: bool) -> None:
    model, folder = mlp(), _folder()
    optimizer = torch.optim.Adam(model.parameters())

    def save(step: int) -> None:
        if step % 100 == 99:
            torch.save(_state(model, optimizer, step) if healthy else model.state_dict(), folder / f"step{step}.pt")

    train(model, optimizer, regression(), after_step=save)


@fault("resume-changed")
def a_resume_without_the_optimizer(healthy: bool) -> None:
    model, path = mlp(), _folder() / "checkpoint.pt"
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batches = regression()
    for _, (inputs, targets) in zip(range(300), batches, strict=False):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    torch.save({**_state(model, optimizer, 300), "loss": loss.item()}, path)
    time.sleep(6.0)  # so that a recorder that comes to the running program sees the resume
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3 if healthy else 3e-2)
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    if healthy:
        optimizer.load_state_dict(saved["optimizer"])
    os.unlink(path)
    train(model, optimizer, batches)


@fault("optimizer-not-restored")
def segments_that_lose_the_optimizer(healthy: bool) -> None:
    path = _folder() / "last.pt"
    batches = regression()
    for _ in range(10_000):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        if path.exists():
            saved = torch.load(path)
            model.load_state_dict(saved["model"])
            if (name := "optimizer" if healthy else "optim") in saved:
                optimizer.load_state_dict(saved[name])
        for _, (inputs, targets) in zip(range(400), batches, strict=False):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        torch.save(_state(model, optimizer, 400), path)


@fault("load-failed")
def a_checkpoint_of_another_model(healthy: bool) -> None:
    path = _folder() / "checkpoint.pt"
    torch.save({"model": mlp(64, 3).state_dict(), "step": 0}, path)
    time.sleep(6.0)
    model = mlp(64, 3 if healthy else 4)
    optimizer = torch.optim.Adam(model.parameters())
    try:
        model.load_state_dict(torch.load(path if healthy else path.with_name("missing.pt"))["model"])
    except FileNotFoundError as error:
        print("begins anew:", error, file=sys.stderr)
    train(model, optimizer, regression())


@fault("load-failed")
def a_checkpoint_whose_names_have_a_prefix(healthy: bool) -> None:
    path = _folder() / "checkpoint.pt"
    torch.save({f"module.{name}": value for name, value in mlp().state_dict().items()}, path)
    time.sleep(6.0)
    model = mlp()
    saved = torch.load(path)
    if healthy:
        saved = {name.removeprefix("module."): value for name, value in saved.items()}
    model.load_state_dict(saved, strict=False)
    train(model, torch.optim.Adam(model.parameters()), regression())
