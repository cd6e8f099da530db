"""A job whose model has known sizes, with two loader workers; it trains as long as its standard input is open.

    known_training.py BASE

Runs the recorder with its folder in BASE. Prints `ready` when it answers and a step has been taken.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import own_recorder
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from probe_agent.recorder.ring import folder


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index))


def end_with_parent(worker):
    """A worker whose parent is killed while it sends a batch would wait for ever."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.tied = nn.Linear(8, 16, bias=False)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(16, 1).double()
        self.last.bias.requires_grad_(False)

    def forward(self, inputs):
        return self.last((self.norm(self.first(inputs)) + self.tied(inputs)).double())


class Trainer:
    def __init__(self):
        self.net = Net()
        groups = [{"params": [*self.net.first.parameters()], "lr": 0.25}, {"params": [self.net.last.weight]}]
        self.optimizer = torch.optim.SGD(groups, lr=0.125, momentum=0.5)

    def train(self, batches):
        self.optimizer.zero_grad(set_to_none=False)
        self.net(batches).square().mean().backward()
        self.optimizer.step()


def start_recorder(base):
    folder.BASES = (base,)
    with open("/proc/self/stat") as file:
        own = folder.make(os.getpid(), folder.start_ticks(file.read()))
    own_recorder.start(own)
    while not os.path.exists(os.path.join(own, folder.TARGET)):
        time.sleep(0.001)


def main():
    torch.set_num_threads(1)
    trainer = Trainer()
    loader = DataLoader(
        Samples(),
        batch_size=8,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=3,
        worker_init_fn=end_with_parent,
    )
    start_recorder(sys.argv[1])
    stopping = []
    # Not sys.stdin.read(): it holds the lock of sys.stdin, which a forked worker closes.
    _thread.start_new_thread(lambda: stopping.append(os.read(0, 1)), ())
    said = False
    while not stopping:
        for batch in loader:
            trainer.train(batch)
            if not said:
                print("ready", flush=True)
                said = True
            time.sleep(0.01)


if __name__ == "__main__":
    main()
