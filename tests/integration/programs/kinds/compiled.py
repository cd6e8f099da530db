"""A model under `torch.compile` with its own loop around it.

Holds: the compiled region is one module, marked as such; forward and backward are those of the calls; the recorder
causes no recompilation.
"""

import time

import torch
from paced import slow
from torch import nn
from truth import Truth

STEPS = 12
truth = Truth(STEPS)
torch.manual_seed(10)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
model = torch.compile(net, backend="aot_eager", fullgraph=True)
optimizer = slow(torch.optim.AdamW(net.parameters(), lr=1e-2))
inputs = torch.randn(STEPS, 1024, 8)
for number in range(STEPS):
    optimizer.zero_grad()
    with truth.clock("forward"):
        output = model(inputs[number])
    loss = (output - inputs[number].sum(1, keepdim=True)).square().mean()
    with truth.clock("backward"):
        loss.backward()
    with truth.clock("optimizer"):
        optimizer.step()
    time.sleep(0.002)
    truth.step(loss.item())
counters = torch._dynamo.utils.counters
print({kind: dict(counters[kind]) for kind in ("stats", "graph_break", "recompiles", "unimplemented")})
truth.tell(net)
