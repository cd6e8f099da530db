"""Hugging Face's Trainer over DDP; its own checkpoints and logs are off."""

from __future__ import annotations

import torch
from parts import DATA_S, SIZE, Net, adam
from planted import Planted
from torch import nn

__all__ = ["trainer"]


class Samples(torch.utils.data.Dataset):
    def __init__(self, planted: Planted) -> None:
        self.planted = planted

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.planted.pause("data", DATA_S)
        return {"value": torch.full((SIZE,), float(index % 7))}


class WithLoss(nn.Module):
    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.net = Net(planted)

    def forward(self, value: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.net(value).square().mean()}


def trainer(planted: Planted) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Places(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            planted.pause("between")

        def on_step_end(self, args, state, control, **kwargs):
            planted.pause("after")
            planted.step_ends()

    model = WithLoss(planted)
    optimizer = adam(planted, model.parameters())
    arguments = TrainingArguments(
        output_dir=str(planted.folder / "output-of-trainer"),
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=1,
        max_steps=1_000_000,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    Trainer(
        model=model,
        args=arguments,
        train_dataset=Samples(planted),
        optimizers=(optimizer, schedule),
        callbacks=[Places()],
    ).train()
