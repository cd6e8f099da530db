"""Lightning's Trainer: two epochs with validation after each and in the middle, two micro-batches per step.

Holds: steps are `trainer.global_step`; validation is not training.
"""

import logging
import tempfile
import warnings

import lightning
import torch
from paced import Paced, named
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import Truth

STEPS = 12
truth = Truth(STEPS)
truth.micro_batches = 2
warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch"):
    logging.getLogger(name).setLevel(logging.ERROR)
torch.manual_seed(32)
torch.set_num_threads(1)


class Task(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1)))
        self.total = 0.0

    def training_step(self, batch, number):
        with truth.clock("forward"):
            output = self.net(batch[0])
        loss = (output - batch[0].sum(1, keepdim=True)).square().mean()
        self.total += loss.item() / 2
        return loss

    def backward(self, loss):
        with truth.clock("backward"):
            loss.backward()

    def on_train_batch_end(self, *_):
        if self.trainer.global_step > truth.steps:
            truth.step(self.total)
            self.total = 0.0

    def validation_step(self, batch, number):
        with truth.clock("evaluation"):
            self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


task = Task()
named(task.net)
data = TensorDataset(torch.randn(96, 8))
with tempfile.TemporaryDirectory() as folder:
    quiet = {name: False for name in ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")}
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        val_check_interval=0.5,
        accumulate_grad_batches=2,
        default_root_dir=folder,
        **quiet,
    )
    trainer.fit(task, DataLoader(data, 8), DataLoader(data, 32))
truth.others["global_step"] = trainer.global_step
truth.tell(task)
