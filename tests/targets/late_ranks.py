"""A rank that comes late to init_process_group: `late_ranks.py FOLDER`, with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT set. It begins once FOLDER/RANK exists, and prints what it computed."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

FOLDER, RANK = sys.argv[1], os.environ["RANK"]


def hold():
    while not os.path.exists(os.path.join(FOLDER, RANK)):
        time.sleep(0.01)


def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    hold()
    dist.init_process_group("gloo")
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().sum().backward()
        optimizer.step()
    total = model.weight.detach().sum()
    dist.all_reduce(total)
    print(total.item().hex(), torch.rand(()).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
