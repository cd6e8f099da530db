"""A job that stands still after a number of steps: its device runs a kernel that never ends, or its host never calls.
On a CPU, a read that never returns stands for the kernel."""

import os
import time

import torch
from control import Control, Net

STEPS = 60


def wait_for_device(control):
    if not control.on_gpu:
        os.read(os.pipe()[0], 1)
    torch.cuda._sleep(10**14)  # half a day
    print(torch.ones(1, device="cuda").sum().item())


def never_calls():
    while True:
        time.sleep(0.05)


def main():
    control = Control(__doc__, how="kernel")
    model = Net().to(control.device)
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(64, 256, device=control.device)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        control.synchronize()
        time.sleep(0.01)
        if step == 10:
            control.say("ready")
        if step == 40:
            control.wait("attached")
    control.say("stuck")
    if control.args.how == "kernel":
        wait_for_device(control)
    never_calls()


if __name__ == "__main__":
    main()
