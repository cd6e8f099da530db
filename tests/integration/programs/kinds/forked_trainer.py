"""A trainer that forks midway: parent and child train on, each by itself, and both run their `atexit`.

Holds: the parent's rows are the parent's only; the child ends as it would have, and leaves nothing of ours behind.
"""

import atexit
import os
import sys

import torch
from paced import Paced, named, slow
from torch import nn
from truth import Truth, digest

STEPS, FORK_AT = 20, 8
truth = Truth(STEPS)
torch.manual_seed(19)
torch.set_num_threads(1)
# No backward in the parent before the fork: autograd's threads do not come along.
model = named(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1))))
optimizer = slow(torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9))
inputs = torch.randn(STEPS, 16, 8)
is_child = False


def said():
    print("child" if is_child else "parent", "is at its end", digest(model), flush=True)


atexit.register(said)
for number in range(STEPS):
    if number == FORK_AT:
        child = os.fork()
        is_child = child == 0
    optimizer.zero_grad()
    with truth.clock("forward"):
        output = model(inputs[number] * (2 if is_child else 1))
    loss = (output - inputs[number].sum(1, keepdim=True)).square().mean()
    with truth.clock("backward"):
        loss.backward()
    with truth.clock("optimizer"):
        optimizer.step()
    truth.step(loss.item())
if is_child:
    sys.exit(3)
print("the child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
atexit.unregister(said)
truth.tell(model)
