"""A small MLP that trains for a fixed number of steps, with only the answering half of the recorder.

Usage: eval_torch.py SOCKET STEPS. Keeps everything as locals of main(). Prints `ready`, then one line per step: the
exact loss; ends earlier when its standard input does.
"""

from __future__ import annotations

import _thread
import sys

import torch
from eval_loop import start_recorder, training
from torch import nn

from probe_agent.recorder.steps.queue import StepQueue


class Trainer:
    def __init__(self, network: nn.Module, adam: torch.optim.Optimizer) -> None:
        self.network = network
        self.adam = adam
        self.current_step = 0

    def training_step(self, inputs: torch.Tensor) -> float:
        self.current_step += 1
        self.adam.zero_grad()
        loss = (self.network(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        self.adam.step()
        return loss.item()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    trainer = Trainer(mlp, torch.optim.Adam(mlp.parameters(), lr=1e-3))
    queue = StepQueue()
    training[0] = _thread.get_ident()
    start_recorder(sys.argv[1], queue)
    stopping: list[str] = []
    _thread.start_new_thread(lambda: stopping.append(sys.stdin.read()), ())
    print("ready", flush=True)
    for _ in range(int(sys.argv[2])):
        if stopping:
            break
        print(trainer.training_step(torch.randn(64, 16)).hex())
        if queue.pending:
            queue.run_pending()


if __name__ == "__main__":
    main()
