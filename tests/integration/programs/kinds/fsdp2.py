"""FSDP2 on gloo: a block and the outermost module sharded over two ranks.

Holds: on every rank, what holds for one process; the combined weights are those of the twin.
"""

import torch
from paced import Paced, named, slow
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from truth import Truth

STEPS = 12
truth = Truth(STEPS)
torch.set_num_threads(1)
distributed.init_process_group("gloo")
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 2)))
fully_shard(model[0])
fully_shard(model)
named(model)
optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-2))
inputs = torch.randn(STEPS, 2, 16, 8)[:, distributed.get_rank()]
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
distributed.destroy_process_group()
