"""A job that trains with a framework until it is killed; no frame of this file names an object of it.

    framework_names.py transformers | lightning | hidden FOLDER

`hidden` trains without a framework, with model and optimizer where no frame leads to them.

Prints `ready` when the fifth step begins.
"""

from __future__ import annotations

import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from torch import nn

SIZE = 16
FOREVER = 10**9


class Tiny(nn.Module):
    """A module that returns a loss, for transformers' Trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.second = nn.Linear(SIZE, 1)
        self.calls = 0

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        if self.calls == 5:
            print("ready", flush=True)
        return {"loss": (self.second(torch.tanh(self.first(inputs))) - labels).square().mean()}


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"inputs": torch.full((SIZE,), at / 100_000), "labels": torch.ones(1)}


def transformers_trainer(folder: str) -> object:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        max_steps=FOREVER,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    return Trainer(model=Tiny(), args=arguments, train_dataset=Rows())


def lightning_fit(folder: str) -> None:
    import lightning

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Tiny()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 0.01)

    lightning.Trainer(
        max_steps=-1,
        max_epochs=-1,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Task(), torch.utils.data.DataLoader(Rows(), batch_size=4))


class Hidden:
    """Without a `__dict__` no path leads to its contents."""

    __slots__ = ("network", "stepper")

    def __init__(self) -> None:
        self.network = Tiny()
        self.stepper = torch.optim.SGD(self.network.parameters(), 0.01)

    def train(self) -> None:
        while True:
            self.stepper.zero_grad()
            self.network(torch.ones(4, SIZE), torch.ones(4, 1))["loss"].backward()
            self.stepper.step()


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "transformers":
        transformers_trainer(sys.argv[2]).train()
    elif sys.argv[1] == "hidden":
        Hidden().train()
    else:
        lightning_fit(sys.argv[2])


if __name__ == "__main__":
    main()
