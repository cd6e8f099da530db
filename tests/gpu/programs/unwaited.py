"""A job in which torch raises at every operation that waits for the device, and that counts how far its host can run
ahead of a device that sleeps. Told to plant a NaN, its layer `faulty` gives one out at every step."""

import time

import torch
from control import Control

AHEAD_STEPS, SLEEP_S = 10, 1.0


class Faulty(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def forward(self, x):
        return x * self.factor


class Model(torch.nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.faulty = Faulty()
        self.head = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.head(self.faulty(self.first(x)))


def main():
    control = Control(__doc__)
    model = Model().to(control.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch = torch.randn(64, 256, device=control.device)

    def take_step():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    steps = 0
    done = set()
    for _ in range(20):
        take_step()
    if control.on_gpu:
        torch.cuda.set_sync_debug_mode("error")
    while not control.told("stop"):
        take_step()
        steps += 1
        if steps == 20:
            control.say("ready")
        if steps % 10 == 0:
            quiet(control)
        if control.told("plant"):
            model.faulty.factor = float("nan")
        for name in ("before", "after"):
            if control.told(name) and name not in done:
                done.add(name)
                control.say(f"ahead-{name}", **run_ahead(control, take_step))
                steps += AHEAD_STEPS
    quiet(control)
    control.say("final", steps=steps)


def quiet(control):
    """Wait for the device, where the job itself may."""
    if control.on_gpu:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    else:
        time.sleep(0.01)


def run_ahead(control, take_step):
    """Have the device sleep; return how long the host takes for some steps meanwhile, and whether it still slept."""
    quiet(control)
    slept = None
    if control.on_gpu:
        torch.cuda._sleep(int(SLEEP_S * 2e9))
        slept = torch.cuda.Event()
        slept.record()
    counted = torch.cuda.memory_stats()["allocation.all.allocated"] if control.on_gpu else 0
    began = time.perf_counter()
    for _ in range(AHEAD_STEPS):
        take_step()
    took = time.perf_counter() - began
    asleep = slept is None or not slept.query()
    allocations = torch.cuda.memory_stats()["allocation.all.allocated"] - counted if control.on_gpu else 0
    quiet(control)
    return {"host_s": took, "asleep": asleep, "steps": AHEAD_STEPS, "allocations": allocations}


if __name__ == "__main__":
    main()
