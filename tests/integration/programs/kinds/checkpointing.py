"""Activation checkpointing: two of three blocks run their forward again inside backward.

Holds: recomputation belongs to backward and is marked `recomputed`; forward is only the first time.
"""

import torch
from paced import Paced, named, slow
from torch import nn
from torch.utils.checkpoint import checkpoint
from truth import Truth

STEPS = 14
truth = Truth(STEPS)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Paced(truth, nn.Linear(8, 8)) for _ in range(3))

    def forward(self, x):
        x = self.blocks[0](x)
        for block in self.blocks[1:]:
            x = checkpoint(block, torch.tanh(x), use_reentrant=False)
        return x


torch.manual_seed(11)
torch.set_num_threads(1)
model = named(Net())
optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-2))
inputs = torch.randn(STEPS, 16, 8)
for number in range(STEPS):
    optimizer.zero_grad()
    with truth.clock("forward"):
        output = model(inputs[number])
    loss = (output - inputs[number].flip(1)).square().mean()
    with truth.clock("backward"):
        loss.backward()
    with truth.clock("optimizer"):
        optimizer.step()
    truth.step(loss.item())
truth.tell(model)
