"""A job that takes more and more memory until the device has none left, and dies of it."""

import torch
from control import Control, Net

HELD = []


def hog(device):
    while True:
        HELD.append(torch.empty(64 * 2**20, dtype=torch.uint8, device=device))
        if device == "cpu" and len(HELD) == 4:
            raise MemoryError("a CPU in place of a device that is full")


def main():
    control = Control(__doc__)
    if control.on_gpu:
        torch.cuda.set_per_process_memory_fraction(0.02)
    model = Net().to(control.device)
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(64, 256, device=control.device)
    for _ in range(30):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    total = torch.cuda.get_device_properties(0).total_memory / 2**20 if control.on_gpu else 0.0
    control.say("ready", total=total, **control.mib())
    control.wait("hog")
    hog(control.device)


if __name__ == "__main__":
    main()
