"""A job that its GPU limits, one that launching kernels limits, and one whose model was left on the CPU.

python limited.py --by device|launches|cpu --device cuda --folder FOLDER
"""

import torch
from control import Control
from torch import nn

#: Width, layers, batch.
SIZES = {"device": (4096, 6, 4096), "launches": (64, 40, 32), "cpu": (64, 4, 32)}


def main():
    control = Control(__doc__, by="device")
    by = control.args.by
    width, layers, batch_size = SIZES[by] if control.on_gpu else SIZES["cpu"]
    device = "cpu" if by == "cpu" else control.device
    model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(batch_size, width, device=device)
    steps = 0
    while not control.told("stop"):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        steps += 1
        if steps % 10 == 0 and by != "cpu":
            control.synchronize()  # it does not run ahead without an end
        if steps == 20:
            control.say("ready")
    control.say("final", steps=steps)


if __name__ == "__main__":
    main()
