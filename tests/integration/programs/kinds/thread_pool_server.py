"""A server that answers with a pool of three threads, each of which calls the one model.

Holds: calls on every thread of the pool are found.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from paced import Paced, named
from torch import nn
from truth import Truth

CALLS = 30
truth = Truth(CALLS)
torch.manual_seed(16)
torch.set_num_threads(1)
model = named(nn.Sequential(nn.Linear(4, 8), Paced(truth, nn.Linear(8, 1), 0.004))).eval()


def answer(number):
    with torch.no_grad():
        began = time.perf_counter()
        output = model(torch.tensor([float(number), 1.0, 2.0, 3.0]))
    return output, time.perf_counter() - began


with ThreadPoolExecutor(3) as pool:
    until = time.monotonic() + float(os.environ.get("PROGRAM_WARM_UP", "0"))
    while time.monotonic() < until:
        list(pool.map(answer, range(12)))
    answers = list(pool.map(answer, range(CALLS)))
for _, seconds in answers:
    truth.add("forward", seconds)
    truth.step()
truth.tell([output for output, _ in answers])
