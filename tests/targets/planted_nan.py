"""A DDP job of a few ranks on gloo that makes a value that is not finite on rank 1, where it is told to.

    planted_nan.py FOLDER [STEPS]

FOLDER/fault names the fault, and is followed by any number: `forward 3`. With a new content every rank returns to its
first weights, at the same step, and writes what it has read to FOLDER/fault-RANK once it has trained a step with it.
It ends when FOLDER/stop is there, or after STEPS, and writes the number of its steps and a digest of its losses and
weights to FOLDER/digest-RANK. Faults:

    none        none
    forward     a block's own code
    backward    the backward of a custom function in a block
    data        the batch
    parameter   a weight, once
    buffer      BatchNorm's running_var, once; only the evaluation every tenth step uses it
    gradient    an infinite value in a gradient, between backward and the optimizer
    loss        the job's own code between the model and backward
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH = 16, 8
FAULTS = ("none", "forward", "backward", "data", "parameter", "buffer", "gradient", "loss")
fault = "none"


def is_planted(name):
    return fault == name and dist.get_rank() == 1


class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float("nan") if is_planted("backward") else grad


class Mix(nn.Module):
    def forward(self, x, mask):
        return x + x @ torch.softmax(mask, -1) * 0.1


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.mix = Mix()
        self.mask = torch.triu(torch.full((WIDTH, WIDTH), float("-inf")), 1)  # infinite in a healthy job, too

    def forward(self, x):
        y = self.mix(self.inner(x), mask=self.mask)
        if self.number == 1:
            y = Passed.apply(y)
        if self.number == 2 and is_planted("forward"):
            y = y * float("nan")
        return x + torch.tanh(y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(number) for number in range(4))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.drop(self.norm(x)))


class Samples(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        inputs = torch.sin(torch.arange(WIDTH) + index)
        if is_planted("data"):
            inputs[0] = float("nan")
        return inputs, inputs.nan_to_num().sum(0, keepdim=True)


def read_fault(folder, last):
    """Return what FOLDER/fault says, the same on all ranks; None once FOLDER/stop is there."""
    said = torch.tensor(last)
    if dist.get_rank() == 0:
        if os.path.exists(f"{folder}/stop"):
            said[0] = -1
        elif os.path.exists(f"{folder}/fault"):
            with open(f"{folder}/fault") as file:
                name, number = file.read().split()
            said = torch.tensor([FAULTS.index(name), int(number)])
    dist.broadcast(said, 0)
    return said.tolist() if said[0] >= 0 else None


def main():
    global fault
    folder, num_steps = sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 0
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = DistributedDataParallel(Net(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.5)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    last, digest, num_done = [0, 0], hashlib.sha256(), 0
    batches = iter(DataLoader(Samples(), batch_size=BATCH))
    for step in itertools.count():
        said = [0, 0] if num_steps else read_fault(folder, last)
        if said is None:
            break
        is_new = said != last
        if is_new:
            last, fault = said, FAULTS[said[0]]
            model.load_state_dict(first)
            optimizer.state.clear()
            with torch.no_grad():
                if is_planted("parameter"):
                    model.module.blocks[1].inner.weight[0, 0] = float("nan")
                if is_planted("buffer"):
                    model.module.norm.running_var[3] = float("nan")
        inputs, wanted = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        if is_planted("loss"):
            loss = loss * float("inf")
        loss.backward()
        if is_planted("gradient"):
            model.module.head.weight.grad[0, 2] = float("inf")
        optimizer.step()
        digest.update(loss.item().hex().encode())
        if step % 10 == 0:
            model.eval()
            with torch.no_grad():
                digest.update(model.module(inputs).sum().item().hex().encode())
            model.train()
        if is_new:
            with open(f"{folder}/fault-{rank}.new", "w") as file:
                file.write(f"{fault} {last[1]}")
            os.replace(f"{folder}/fault-{rank}.new", f"{folder}/fault-{rank}")
        num_done = step + 1
        if num_done == num_steps:
            break
        if not num_steps:
            time.sleep(0.005)
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    with open(f"{folder}/digest-{rank}", "w") as file:
        file.write(f"{num_done} {digest.hexdigest()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
