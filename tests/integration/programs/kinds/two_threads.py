"""Two models trained in two threads at once, each with its own optimizer.

Holds: both compute the same as alone; the recorded steps are those of one thread, without the other's time.
"""

import threading

import torch
from paced import Paced, named, slow
from torch import nn
from truth import Truth

STEPS = 20
truths = [Truth(STEPS), Truth(STEPS)]


def train(truth, seed):
    made = torch.Generator().manual_seed(seed)
    inputs = torch.randn(STEPS, 16, 8, generator=made)
    model = named(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1))))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=made) * 0.1)
    optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-2))
    for number in range(STEPS):
        if number == 1 - seed:  # the second begins when the first has taken a step
            ready.wait()
        optimizer.zero_grad()
        with truth.clock("forward"):
            output = model(inputs[number])
        loss = (output - inputs[number].sum(1, keepdim=True)).square().mean()
        with truth.clock("backward"):
            loss.backward()
        with truth.clock("optimizer"):
            optimizer.step()
        truth.step(loss.item())
    done.append((seed, model, optimizer))


torch.set_num_threads(1)
done, ready = [], threading.Barrier(2)
threads = [threading.Thread(target=train, args=(truth, seed)) for seed, truth in enumerate(truths)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
torch.manual_seed(26)
print([len(truth.losses) for truth in truths], sum(truths[1].losses))
truths[0].tell(*[model for _, model, _ in sorted(done)])
