"""A job whose device has long work to do, which it times itself: with CUDA events of its own around each part (on a
CPU with its own clock), and with torch's profiler when it is told to."""

import time

import torch
from control import Control

PROFILED_STEPS = 5


class Part(torch.nn.Module):
    """Matrix products, timed from the first to the last."""

    def __init__(self, control, width, depth):
        super().__init__()
        self.layers = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(depth)
        )
        self.on_gpu = control.on_gpu
        self.times = []

    def now(self):
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def forward(self, x):
        began = self.now()
        for layer in self.layers:
            x = x @ layer
        self.times.append((began, self.now()))
        return x

    def seconds(self):
        if self.on_gpu:
            return [begin.elapsed_time(end) * 1e-3 for begin, end in self.times]
        return [end - begin for begin, end in self.times]


class Timed(torch.nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        self.allocated = []

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        self.allocated.append(torch.cuda.memory_allocated() / 2**20 if x.is_cuda else 0.0)
        return x


def main():
    control = Control(__doc__)
    width, rows, kind = (4096, 8192, torch.bfloat16) if control.on_gpu else (512, 256, torch.float32)
    model = Timed([Part(control, width, depth) for depth in (1, 2, 4)]).to(control.device, kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    batch = torch.randn(rows, width, device=control.device, dtype=kind)
    steps = profiled = 0

    def take_step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    while not control.told("stop"):
        take_step()
        steps += 1
        if steps % 4 == 0 or control.told("calm"):
            control.synchronize()  # the host is never far ahead; told to be calm, no kernel of a step runs in the next
        if steps == 12:
            control.say("ready")
        if steps == 40:
            control.wait("attached")
        if control.told("profile") and not profiled:
            profiled = own_profile(control, take_step)
            steps += PROFILED_STEPS
            control.say("profiled", seconds=profiled, steps=PROFILED_STEPS)
    control.synchronize()
    times = {f"Timed.parts.{at}": part.seconds() for at, part in enumerate(model.parts)}
    control.say("final", steps=steps, times=times, allocated=model.allocated)


def own_profile(control, take_step):
    """Return the seconds of all kernels a step (of all operators, on a CPU) by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if control.on_gpu else [])]
    take_step()
    control.synchronize()
    with profile(activities=activities) as profiler:
        for _ in range(PROFILED_STEPS - 1):
            take_step()
        control.synchronize()
    total = 0.0
    for event in profiler.events():
        is_kernel = str(event.device_type).endswith("CUDA") and not event.is_user_annotation
        if is_kernel if control.on_gpu else not event.cpu_parent:
            total += event.time_range.elapsed_us()
    return total * 1e-6 / (PROFILED_STEPS - 1)


if __name__ == "__main__":
    main()
