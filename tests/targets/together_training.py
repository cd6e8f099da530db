"""One rank of a gloo job, started by torchrun, that trains with DDP.

    together_training.py BASE OPTIMIZER NUM_HOSTS [STEPS]

Its recorder is in BASE/host0, host1 …, as if the ranks were on NUM_HOSTS hosts, and starts two steps later on each
rank than on the one before: with `sgd`, which keeps no count, every rank then numbers its steps differently. With
NUM_HOSTS 0 there is no recorder, and no pause after each step.

Trains until BASE/stop exists, or for STEPS steps; each loss goes to BASE/losses-RANK
bit for bit. While BASE/stand exists, rank 0 stands still.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import own_recorder
import torch
import torch.distributed as dist
from torch import nn

from probe_agent.recorder.ring import folder as folders

BASE, OPTIMIZER, NUM_HOSTS = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
STEPS = int(sys.argv[4]) if len(sys.argv) > 4 else 0
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def start_recorder(rank: int) -> None:
    """Start recording; return once everything that will be patched is."""
    host = BASE / f"host{rank % NUM_HOSTS}"
    host.mkdir(exist_ok=True)
    folders.BASES = (str(host),)
    own_recorder.start()
    while not list(host.glob(f"*/{os.getpid()}-*/{folders.TARGET}")):
        time.sleep(0.005)
    time.sleep(0.3)


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
        self.optimizer = OPTIMIZERS[OPTIMIZER](self.model.parameters(), lr=1e-3)
        self.current_step = 0
        self.stop = torch.zeros(1)

    def fit(self, rank: int) -> None:
        with (BASE / f"losses-{rank}").open("w", buffering=1) as losses:
            while not self.stop:
                if NUM_HOSTS and self.current_step == 3 + 2 * rank:
                    start_recorder(rank)
                print(self.training_step(torch.randn(16, 8)).hex(), file=losses)
                while rank == 0 and (BASE / "stand").exists():
                    time.sleep(0.2)
                if NUM_HOSTS:
                    time.sleep(0.05)
                self.stop += self.current_step == STEPS if STEPS else rank == 0 and (BASE / "stop").exists()
                dist.all_reduce(self.stop)

    def training_step(self, inputs: torch.Tensor) -> float:
        self.current_step += 1
        self.optimizer.zero_grad()
        loss = (self.model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer()
    torch.manual_seed(dist.get_rank())
    trainer.fit(dist.get_rank())
    os._exit(0)
