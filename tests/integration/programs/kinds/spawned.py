"""torch.multiprocessing.spawn of two ranks that meet through a file.

Holds: with PROBE=all every rank is a target that knows its rank and the world size; the parent has no step.
"""

import contextlib
import os
import tempfile

import torch
from paced import Paced, named, slow
from torch import distributed, nn
from truth import Truth

STEPS = 10


def train(rank, path):
    truth = Truth(STEPS)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.manual_seed(29 + rank)
    model = named(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1))))
    optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-2))
    for _ in range(STEPS):
        inputs = torch.randn(16, 8)
        optimizer.zero_grad()
        with truth.clock("forward"):
            output = model(inputs)
        loss = (output - inputs.sum(1, keepdim=True)).square().mean()
        with truth.clock("backward"):
            loss.backward()
        with truth.clock("optimizer"):
            optimizer.step()
        truth.step(loss.item())
    distributed.all_reduce(torch.ones(1))
    truth.others.update(rank=rank, pid=os.getpid())
    with open(f"{path}.{rank}", "w") as file, contextlib.redirect_stdout(file):
        truth.tell(model)
    distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        torch.multiprocessing.spawn(train, (path,), nprocs=2)
        for rank in range(2):
            with open(f"{path}.{rank}") as file:
                print(file.read(), end="")
