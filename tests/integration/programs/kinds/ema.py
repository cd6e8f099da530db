"""Weights averaged during training (EMA through AveragedModel), gradient clipping by value, early stop by patience.

Holds: the averaged model's evaluation is not training; training stops where it would have.
"""

import torch
from paced import Paced, named, slow
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from truth import Truth

STEPS, EVERY, PATIENCE = 40, 5, 2
truth = Truth(20)
torch.manual_seed(27)
torch.set_num_threads(1)
model = named(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1))))
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = slow(torch.optim.AdamW(model.parameters(), lr=0.05))
inputs = torch.randn(STEPS, 16, 8)
held_out = torch.randn(64, 8)
best, bad = float("inf"), 0
for number in range(STEPS):
    optimizer.zero_grad()
    with truth.clock("forward"):
        output = model(inputs[number])
    loss = (output - inputs[number].sum(1, keepdim=True)).square().mean()
    with truth.clock("backward"):
        loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    with truth.clock("optimizer"):
        optimizer.step()
    averaged.update_parameters(model)
    truth.step(loss.item())
    if (number + 1) % EVERY == 0:
        averaged.eval()
        with torch.no_grad(), truth.clock("evaluation"):
            score = (averaged(held_out) - held_out.abs().sum(1, keepdim=True)).square().mean().item()
        best, bad = (score, 0) if score < best - 0.5 else (best, bad + 1)
        print(f"step {number + 1}: {score:.4f}")
        if bad == PATIENCE:
            print("no better: stop")
            break
truth.tell(model, averaged)
