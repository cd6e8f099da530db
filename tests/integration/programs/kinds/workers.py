"""A DataLoader with two workers and a sampler of its own; the loop waits for it in every step.

Holds: `data_wait` is what the loop waited, `batch_size` the batches' own; the workers hold nothing of ours.
"""

import os
import time

import torch
from paced import Paced, named, slow
from torch import nn
from torch.utils.data import DataLoader, Dataset
from truth import Truth

STEPS, BATCH = 24, 4
truth = Truth(STEPS)


class Slow(Dataset):
    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        time.sleep(0.003)
        modules = sum("_probe" in name and not name.startswith("_probe_training") for name in __import__("sys").modules)
        threads = len(os.listdir("/proc/self/task"))
        return torch.randn(8, generator=torch.Generator().manual_seed(index)), torch.rand(1), threads, modules


torch.manual_seed(17)
torch.set_num_threads(1)
truth.others["batch_size"] = BATCH
loader = DataLoader(Slow(), BATCH, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(18))
model = named(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1))))
optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-2))
seen = []
for inputs, noise, threads, modules in truth.batches(loader):
    optimizer.zero_grad()
    with truth.clock("forward"):
        output = model(inputs)
    loss = (output - noise).square().mean()
    with truth.clock("backward"):
        loss.backward()
    with truth.clock("optimizer"):
        optimizer.step()
    seen.append((threads.tolist(), modules.tolist()))
    truth.step(loss.item())
print("threads and modules of ours in the workers:", seen[-1])
truth.tell(model)
