"""When the monotonic clock began, in the time of day: what a time of `perf_counter_ns` needs to become a row's."""

from __future__ import annotations

from time import perf_counter_ns, time_ns

__all__ = ["epoch_ns"]

#: Between two readings of clocks that no other thread interrupts.
_TOGETHER_NS = 5_000
_MAX_TRIES = 5


def epoch_ns() -> int:
    """Return the time of day at which `perf_counter_ns()` was 0, in nanoseconds since 1970.

    A thread of the job may take the GIL, or another program the processor, between two readings: of a few, the pair
    that lies closest counts.
    """
    best_ns, epoch = 0, 0
    for _ in range(_MAX_TRIES):
        began, day, ended = perf_counter_ns(), time_ns(), perf_counter_ns()
        apart_ns = ended - began
        if not epoch or apart_ns < best_ns:
            best_ns, epoch = apart_ns, day - (began + ended) // 2
        if best_ns < _TOGETHER_NS:
            break
    return epoch
