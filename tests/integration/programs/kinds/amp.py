"""Mixed precision: autocast to bfloat16, GradScaler, one step skipped for an infinity, gradient clipping.

Holds: the skipped step is a step, marked as such; the loss is the value before scaling.
"""

import torch
from paced import Paced, named, slow
from torch import nn
from truth import Truth

STEPS, INFINITE = 20, 11
truth = Truth(STEPS)
torch.manual_seed(9)
torch.set_num_threads(1)
model = named(nn.Sequential(nn.Linear(8, 16), nn.GELU(), Paced(truth, nn.Linear(16, 1))))
optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-3))
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
inputs = torch.randn(STEPS, 16, 8)
for number in range(STEPS):
    with torch.autocast("cpu", torch.bfloat16):
        with truth.clock("forward"):
            output = model(inputs[number])
        loss = (output.float() - inputs[number].sum(1, keepdim=True)).square().mean()
        if number == INFINITE:
            loss = loss * float("inf")
    optimizer.zero_grad()
    with truth.clock("backward"):
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with truth.clock("optimizer"):
        scaler.step(optimizer)
    scaler.update()
    truth.others.setdefault("skipped", []).append(number == INFINITE)
    truth.step(loss.item())
truth.tell(model)
