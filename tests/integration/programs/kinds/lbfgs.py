"""LBFGS, whose step calls a closure several times: forward and backward run inside `optimizer.step`.

Holds: a call of `optimizer.step` is one step, with a micro-batch for each call of the closure; forward and backward are
those of all calls, and each call of a module has its own backward row.
"""

import torch
from paced import Paced, named
from torch import nn
from truth import Truth

STEPS = 8
truth = Truth(STEPS)


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.linear = nn.LSTM(1, 8, batch_first=True), Paced(truth, nn.Linear(8, 1))

    def forward(self, x):
        return self.linear(self.lstm(x)[0])


def closure():
    global num_calls
    num_calls += 1
    optimizer.zero_grad()
    with truth.clock("forward"):
        out = seq(waves[:, :-1])
    loss = criterion(out, waves[:, 1:])
    with truth.clock("backward"):
        loss.backward()
    losses.append(loss.item())
    return loss


torch.manual_seed(0)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
waves = torch.sin(torch.arange(20) / 3 + torch.rand(4, 1)).unsqueeze(2)
seq = named(Sequence())
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=4)
num_calls = 0
for step in range(STEPS):
    losses = []
    optimizer.step(closure)
    print(f"STEP: {step} loss: {losses[-1]:.6f}")
    truth.others.setdefault("num_calls", []).append(len(losses))
    truth.step(losses[-1])
truth.tell(seq)
