"""A training that stalls: `stalling.py FOLDER`. It trains, does something without a step until FOLDER/NAME exists, and
so on for each NAME; it prints what it computed, and nothing else.

    unwatched   waits in the job's own code
    stuck       the same
    held        keeps the GIL in a C call; for a fixed time, since nothing can be waited for meanwhile
    evaluate    calls the model in a block without gradients
    after_evaluate    waits in the job's own code before the next step
    save        torch.save to a file that takes no bytes
    compile     torch.compile with a backend that takes long
"""

import ctypes
import hashlib
import os
import random
import sys
import time

import torch
import torch._dynamo  # now: to import it takes long enough to be a stall of its own
from torch import nn

FOLDER = sys.argv[1]


def goes_on(name):
    return os.path.exists(os.path.join(FOLDER, name))


def wait_for(name):
    while not goes_on(name):
        time.sleep(0.01)


def hold_gil():
    ctypes.PyDLL(None).usleep(1_500_000)


class SlowFile:
    """A file on storage that does not answer."""

    def __init__(self):
        self.digest = hashlib.sha256()

    def write(self, data):
        wait_for("save")
        self.digest.update(data)
        return len(data)

    def flush(self):
        pass


def check(model):
    with torch.no_grad():
        while True:
            told = model(torch.ones(1, 8)).sum().item()
            if goes_on("evaluate"):
                return told
            time.sleep(0.001)


def main():
    random.seed(5)
    torch.manual_seed(6)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    seen = hashlib.sha256()

    def train():
        for _ in range(8):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).square().sum()
            loss.backward()
            optimizer.step()
            seen.update(loss.item().hex().encode())
            time.sleep(0.01)

    def backend(module, inputs):
        wait_for("compile")
        return module.forward

    train()
    wait_for("unwatched")
    train()
    wait_for("stuck")
    train()
    hold_gil()
    train()
    seen.update(check(model.eval()).hex().encode())
    wait_for("after_evaluate")
    model.train()
    train()
    file = SlowFile()
    torch.save(model.state_dict(), file)
    seen.update(file.digest.digest())
    train()
    compiled = torch.compile(model.eval(), backend=backend)
    seen.update(compiled(torch.ones(1, 8)).sum().item().hex().encode())
    model.train()
    train()
    print(seen.hexdigest(), random.random(), torch.rand(()).item())


if __name__ == "__main__":
    main()
