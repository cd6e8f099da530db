"""Gradient descent by hand: no optimizer, the parameters are changed under `no_grad`.

Holds: steps are found, one per update; loss, forward and backward are those of the loop.
"""

import torch
from paced import Paced, named
from torch import nn
from truth import Truth

STEPS = 80
truth = Truth(STEPS)
torch.manual_seed(2)
torch.set_num_threads(1)
model = named(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), Paced(truth, nn.Linear(16, 1))))
inputs = torch.randn(STEPS, 16, 8)
for number in range(STEPS):
    with truth.clock("forward"):
        output = model(inputs[number])
    loss = (output - inputs[number].sum(1, keepdim=True)).square().mean()
    with truth.clock("backward"):
        loss.backward()
    with truth.clock("optimizer"), torch.no_grad():
        for weight in model.parameters():
            weight -= 0.01 * weight.grad
            weight.grad = None
    truth.step(loss.item())
truth.tell(model)
