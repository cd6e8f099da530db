"""A job that keeps a tensor of each step."""

import torch
from control import Control, Net

KEPT = []


def main():
    control = Control(__doc__)
    model = Net().to(control.device)
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(64, 256, device=control.device)
    steps = 0
    while not control.told("stop"):
        optimizer.zero_grad()
        output = model(batch)
        output.square().mean().backward()
        optimizer.step()
        KEPT.append(output.detach().clone())  # this line leaks
        steps += 1
        control.synchronize()
        if steps == 20:
            control.say("ready")
    control.say("final", steps=steps)


if __name__ == "__main__":
    main()
