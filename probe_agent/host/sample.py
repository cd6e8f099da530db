"""A sample of something that the kernel counts: counters since boot, of which rates are made, and what holds now."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NAN", "Sample"]

NAN = float("nan")


class Sample(NamedTuple):
    """Counters since boot, and gauges; NaN is unknown."""

    counters: tuple[float, ...]
    gauges: tuple[float, ...] = ()

    def since(self, earlier: Sample, seconds: float) -> tuple[float, ...]:
        """Return the counters' rates a second, and the gauges. A counter that went back was reset: NaN."""
        pairs = zip(self.counters, earlier.counters, strict=True)
        return (*((now - then) / seconds if now >= then else NAN for now, then in pairs), *self.gauges)
