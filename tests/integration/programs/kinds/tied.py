"""A module that is called twice a forward, below two names, with a weight that the output layer shares.

Holds: both calls have a forward and a backward row each, with their own time, under the first of the names.
"""

import torch
from paced import Paced, named, slow
from torch import nn
from torch.nn import functional as F
from truth import Truth

STEPS = 16
truth = Truth(STEPS)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.first = self.second = Paced(truth, nn.Linear(16, 16))
        self.out = nn.Linear(16, 32, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.second(torch.tanh(self.first(self.embed(tokens)))))


torch.manual_seed(12)
torch.set_num_threads(1)
model = named(Tied())
optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-2))
tokens = torch.randint(32, (STEPS, 8))
for number in range(STEPS):
    optimizer.zero_grad()
    with truth.clock("forward"):
        output = model(tokens[number])
    loss = F.cross_entropy(output, tokens[number].roll(1))
    with truth.clock("backward"):
        loss.backward()
    with truth.clock("optimizer"):
        optimizer.step()
    truth.step(loss.item())
truth.tell(model)
