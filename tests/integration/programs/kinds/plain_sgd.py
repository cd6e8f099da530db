"""SGD without momentum, which keeps no count of its steps; the loop counts in `global_step`.

Holds: what holds for any loop. If attached to midway, its steps are counted from there, and answers say so.
"""

import torch
from paced import Paced, named, slow
from torch import nn
from truth import Truth

STEPS = 24
truth = Truth(STEPS)
torch.manual_seed(13)
torch.set_num_threads(1)
model = named(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1))))
optimizer = slow(torch.optim.SGD(model.parameters(), lr=1e-2))
inputs = torch.randn(STEPS, 16, 8)
global_step = 0
for global_step in range(STEPS):
    optimizer.zero_grad()
    with truth.clock("forward"):
        output = model(inputs[global_step])
    loss = (output - inputs[global_step].sum(1, keepdim=True)).square().mean()
    with truth.clock("backward"):
        loss.backward()
    with truth.clock("optimizer"):
        optimizer.step()
    truth.step(loss.item())
truth.tell(model)
