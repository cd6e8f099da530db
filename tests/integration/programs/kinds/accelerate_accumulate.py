"""Accelerate: `accumulate` over three micro-batches, its optimizer around SGD, which keeps no count of its steps.

Holds: steps are those in which gradients are synchronised; the loss is the mean of the micro-batches.
"""

import torch
from accelerate import Accelerator
from paced import Paced, named, slow
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import Truth

STEPS, MICRO = 10, 3
truth = Truth(STEPS)
truth.micro_batches = MICRO
torch.manual_seed(33)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO)
model = named(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1))))
optimizer = slow(torch.optim.SGD(model.parameters(), lr=1e-2))
loader = DataLoader(TensorDataset(torch.randn(STEPS * MICRO * 4, 8)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
total = 0.0
for (inputs,) in loader:
    with accelerator.accumulate(model):
        with truth.clock("forward"):
            output = model(inputs)
        loss = (output - inputs.sum(1, keepdim=True)).square().mean()
        with truth.clock("backward"):
            accelerator.backward(loss)
        total += loss.item() / MICRO
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        truth.step(total)
        total = 0.0
truth.tell(model)
