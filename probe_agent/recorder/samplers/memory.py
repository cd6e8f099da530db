"""Memory of the process and its device, for `rss`, `allocated`, `reserved` and `peak_allocated` of `python.steps`.

Runs on the recorder's thread every flush.interval: one read of /proc/self/statm, and three counters of torch's
allocator (without a GPU, the kernel's peak of resident memory).
"""

from __future__ import annotations

from ..source import Source as BaseSource

__all__ = ["Source"]


class Source(BaseSource):
    name = "memory"
    needs = ("torch", "torch.cuda")

    def start(self) -> None:
        self.tick()

    def tick(self) -> None:
        device = self.recorder.device
        device.refresh()
        self.recorder.step.rss = device.rss()
        self.recorder.step.peak = device.peak
