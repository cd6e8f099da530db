"""A job with its own tools: hooks on modules and optimizer, torch.profiler, faulthandler, signal handlers.

Holds: all of them see the same as without us; handlers stay the job's.
"""

import faulthandler
import signal
import sys

import torch
from paced import Paced, named, slow
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from truth import Truth

STEPS = 16
truth = Truth(STEPS)
seen = {"forward": 0, "backward": 0, "optimizer": 0, "alarm": 0, "traced": 0}


def count(what):
    def hook(*_):
        seen[what] += 1

    return hook


torch.manual_seed(20)
torch.set_num_threads(1)
faulthandler.enable()
faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
signal.signal(signal.SIGALRM, count("alarm"))
signal.signal(signal.SIGTERM, count("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
model = named(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Paced(truth, nn.Linear(16, 1))))
optimizer = slow(torch.optim.AdamW(model.parameters(), lr=1e-2))
model[0].register_forward_hook(count("forward"))
model[0].register_full_backward_hook(count("backward"))
optimizer.register_step_post_hook(count("optimizer"))
inputs = list(torch.randn(STEPS, 16, 8))
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=2, warmup=1, active=2, repeat=1),
    on_trace_ready=lambda profiler: seen.__setitem__("traced", profiler.step_num),
) as profiler:
    for number in range(STEPS):
        optimizer.zero_grad()
        with truth.clock("forward"):
            output = model(inputs[number].requires_grad_())
        loss = (output - inputs[number].sum(1, keepdim=True)).square().mean()
        with truth.clock("backward"):
            loss.backward()
        with truth.clock("optimizer"):
            optimizer.step()
        profiler.step()
        truth.step(loss.item())
signal.setitimer(signal.ITIMER_REAL, 0)
assert seen.pop("alarm") > 5
print(seen, signal.getsignal(signal.SIGALRM).__qualname__, faulthandler.is_enabled())
truth.tell(model)
