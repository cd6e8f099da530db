"""The job's own optimizer on top of torch's (it calls `super().step()`), and a learning rate in a tensor.

Holds: a step is one call of the outer optimizer, whose time is that of the whole call.
"""

import time

import torch
from paced import Paced, named, slow
from torch import nn
from truth import Truth

STEPS = 18
truth = Truth(STEPS)


class Lookahead(torch.optim.AdamW):
    """Go half way back to the starting point on every third step."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self.kept = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        self.num = 0

    def step(self, closure=None):
        loss = super().step(closure)
        time.sleep(0.002)
        self.num += 1
        if self.num % 3 == 0:
            with torch.no_grad():
                for kept, weight in zip(self.kept, self.param_groups[0]["params"], strict=True):
                    kept += 0.5 * (weight - kept)
                    weight.copy_(kept)
        return loss


torch.manual_seed(28)
torch.set_num_threads(1)
model = named(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1))))
torch.optim.AdamW([torch.zeros(1)])  # from now on torch calls hooks for the inner step as well
optimizer = slow(Lookahead(model.parameters(), lr=torch.tensor(1e-2), foreach=False, capturable=False))
inputs = torch.randn(STEPS, 16, 8)
for number in range(STEPS):
    optimizer.zero_grad()
    with truth.clock("forward"):
        output = model(inputs[number])
    loss = (output - inputs[number].sum(1, keepdim=True)).square().mean()
    with truth.clock("backward"):
        loss.backward()
    with truth.clock("optimizer"):
        optimizer.step()
    truth.step(loss.item())
truth.tell(model)
