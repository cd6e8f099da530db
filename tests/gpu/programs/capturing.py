"""A job that captures a graph of a whole step again and again, and compares each replay with the same step run eagerly.

While a graph is captured, a forbidden call on any thread of the process ends the capture with an error.
"""

import copy

import torch
from control import Control, Net

BATCH = 64


def main():
    control = Control(__doc__)
    torch.manual_seed(7)
    model = Net().to(control.device)
    batch = torch.randn(BATCH, 256, device=control.device)
    graphs = wrong = 0
    while not control.told("stop"):
        eager = copy.deepcopy(model)
        captured = copy.deepcopy(model)
        take_steps(eager, batch, 4)
        graph_steps(captured, batch, control)
        pairs = zip(eager.parameters(), captured.parameters(), strict=False)
        wrong += not all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in pairs)
        graphs += 1
        if graphs == 3:
            control.say("ready")
    control.say("final", graphs=graphs, wrong=wrong)


def take_steps(model, batch, num):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(num):
        step(model, optimizer, batch)


def step(model, optimizer, batch):
    optimizer.zero_grad(set_to_none=False)
    model(batch).square().mean().backward()
    optimizer.step()


def graph_steps(model, batch, control):
    """Take three steps to warm up, as torch asks for, and one from a graph."""
    if not control.on_gpu:
        take_steps(model, batch, 4)
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(model, optimizer, batch)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(model, optimizer, batch)
    graph.replay()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
