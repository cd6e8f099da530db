"""DistributedDataParallel on gloo, every rank with its own batches; rank 0 also validates.

Holds: on every rank, what holds for one process; all ranks have the same steps and the same weights.
"""

import torch
from paced import Paced, named, slow
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from truth import Truth

STEPS = 16
truth = Truth(STEPS)
torch.set_num_threads(1)
distributed.init_process_group("gloo")
torch.manual_seed(4)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1)))
model = DistributedDataParallel(net)
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
truth.tell(net)
distributed.destroy_process_group()
