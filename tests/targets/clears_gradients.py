"""A job that clears its gradients as often as it can, until FOLDER has a file `stop`.

    clears_gradients.py FOLDER

While FOLDER has a file `pause` it sleeps. Writes the number of its steps into FOLDER/steps at the end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn


def main(folder):
    torch.set_num_threads(1)
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = torch.randn(16, 64), torch.randn(16, 1)
    step = 0
    while not (folder / "stop").exists():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        step += 1
        while (folder / "pause").exists():
            time.sleep(0.1)
    (folder / "steps").write_text(str(step))


main(Path(sys.argv[1]))
