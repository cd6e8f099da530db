"""A loop that only infers: no optimizer, no backward, one model under `inference_mode`.

Holds: after some seconds without a step, a call of the model is a step, whose forward is the call's time.
"""

import os
import time

import torch
from paced import Paced, named
from torch import nn
from truth import Truth

CALLS = 40
truth = Truth(CALLS)
torch.manual_seed(14)
torch.set_num_threads(1)
model = named(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 4), 0.005))).eval()
answers = []
until = time.monotonic() + float(os.environ.get("PROGRAM_WARM_UP", "0"))
with torch.inference_mode():
    while time.monotonic() < until:  # until it is seen that nothing else ends a step
        model(torch.ones(2, 8))
    for _ in range(CALLS):
        requests = torch.randn(2, 8)
        with truth.clock("forward"):
            answers.append(model(requests))
        truth.step()
truth.tell(answers)
