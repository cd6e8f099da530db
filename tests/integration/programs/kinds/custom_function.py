"""A custom autograd.Function whose backward runs autograd itself, and a loss module that takes no time of its own.

Its backward warns of a line of the training loop, which six frames lie below.

Holds: a backward inside backward is not a micro-batch; backward's time belongs to the module whose operators ran,
not to the loss.
"""

import time
import warnings

import torch
from paced import Paced, named, slow
from torch import nn
from truth import Truth

STEPS = 14
truth = Truth(STEPS)
truth.micro_batches = 1


class Solved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        time.sleep(0.001)
        warnings.warn("as seen from the loop", stacklevel=6)
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            again.sin().backward(gradient)
        return again.grad


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), Paced(truth, nn.Linear(8, 1), 0.001, 0.004)

    def forward(self, x):
        return torch.sigmoid(self.last(Solved.apply(self.first(x))))


torch.manual_seed(25)
torch.set_num_threads(1)
model, criterion = named(Net()), nn.BCELoss()
optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-2))
inputs = torch.randn(STEPS, 16, 8)
for number in range(STEPS):
    optimizer.zero_grad()
    with truth.clock("forward"):
        output = model(inputs[number])
        loss = criterion(output, (inputs[number].sum(1, keepdim=True) > 0).float())
    with truth.clock("backward"):
        loss.backward()
    with truth.clock("optimizer"):
        optimizer.step()
    truth.step(loss.item())
truth.tell(model)
