"""A pipeline of two ranks by hand: activations are sent on, gradients are sent back, two micro-batches a step.

Holds: each rank's steps are its own optimizer's; on the first rank backward starts from a gradient that came from the
second, so it has no loss.
"""

import torch
from paced import Paced, named, slow
from torch import distributed, nn
from truth import Truth

STEPS, MICRO = 10, 2
truth = Truth(STEPS)
truth.micro_batches = MICRO
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(7 + rank)
stage = named(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), Paced(truth, nn.Linear(8, 8))))
optimizer = slow(torch.optim.AdamW(stage.parameters(), lr=1e-2))
batches = torch.randn(STEPS, MICRO, 4, 8, generator=torch.Generator().manual_seed(8))
for number in range(STEPS):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(MICRO):
        if rank == 0:
            with truth.clock("forward"):
                output = stage(batches[number, micro])
            distributed.send(output.detach(), 1)
            gradient = torch.empty(4, 8)
            distributed.recv(gradient, 1)
            with truth.clock("backward"):
                output.backward(gradient)
        else:
            received = torch.empty(4, 8)
            distributed.recv(received, 0)
            received.requires_grad_()
            with truth.clock("forward"):
                output = stage(received)
            loss = (output - batches[number, micro]).square().mean() / MICRO
            with truth.clock("backward"):
                loss.backward()
            distributed.send(received.grad, 0)
            total += loss.item()
    with truth.clock("optimizer"):
        optimizer.step()
    truth.step(total if rank else None)
truth.tell(stage)
distributed.destroy_process_group()
