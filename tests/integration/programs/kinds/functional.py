"""Training with torch.func: an ensemble of models under `vmap`, gradients by `grad`, the update by hand.

Holds: it computes the same; modules under a transform are not counted as calls of their own.
"""

import time

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from truth import Truth

STEPS, MODELS = 16, 3
truth = Truth(STEPS)
torch.manual_seed(24)
torch.set_num_threads(1)
models = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(MODELS)]
weights, buffers = stack_module_state(models)
inputs = torch.randn(STEPS, MODELS, 16, 8)


def loss_of(weights, buffers, batch):
    output = functional_call(models[0], (weights, buffers), (batch,))
    return (output - batch.sum(1, keepdim=True)).square().mean()


for number in range(STEPS):
    with truth.clock("forward"):
        gradients, losses = vmap(grad_and_value(loss_of))(weights, buffers, inputs[number])
    with torch.no_grad():
        weights = {name: weight - 0.05 * gradients[name] for name, weight in weights.items()}
    time.sleep(0.005)
    truth.step(losses.mean().item())
truth.tell(list(weights.values()))
