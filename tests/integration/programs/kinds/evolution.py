"""An evolution strategy: no backward and no optimizer, a population of perturbed weights is tried under `no_grad`.

Holds: it computes the same. If no step is found, the reason is given; `probe_agent.step()` would end them.
"""

import torch
from paced import Paced, named
from torch import nn
from truth import Truth

GENERATIONS, POPULATION = 12, 4
truth = Truth(GENERATIONS)
torch.manual_seed(23)
torch.set_num_threads(1)
model = named(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Paced(truth, nn.Linear(8, 1))))
inputs = torch.randn(32, 4)
targets = inputs.square().sum(1, keepdim=True)
center = nn.utils.parameters_to_vector(model.parameters()).detach()
for _ in range(GENERATIONS):
    noise = torch.randn(POPULATION, len(center))
    scores = []
    with torch.no_grad():
        for one in noise:
            nn.utils.vector_to_parameters(center + 0.1 * one, model.parameters())
            with truth.clock("forward"):
                output = model(inputs)
            scores.append(-(output - targets).square().mean())
    scores = torch.stack(scores)
    center += 0.01 / POPULATION * (noise.T @ ((scores - scores.mean()) / scores.std()))
    truth.step(-scores.max().item())
truth.tell(center)
