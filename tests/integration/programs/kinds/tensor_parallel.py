"""Tensor parallel in pairs, data parallel across them: a 2 x 2 mesh of four ranks on gloo.

Holds: on every rank, what holds for one process; the combined weights are those of the twin.
"""

import torch
from paced import Paced, named, slow
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from truth import Truth

STEPS = 8
truth = Truth(STEPS)
torch.set_num_threads(1)
distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(6)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


model = nn.Sequential(FeedForward(), Paced(truth, nn.Identity(), 0.01, 0.01))
parallelize_module(model[0], mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
named(model)
optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-2))
inputs = torch.randn(STEPS, 2, 4, 8)[:, mesh["dp"].get_local_rank()]
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
distributed.destroy_process_group()
