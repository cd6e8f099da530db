"""Detection of other work on the machine: on a shared one, timings change when somebody compiles.

Runs in the benchmark's process, between blocks. Waiting and repeating depend on the CPU time of other processes,
never on the measured result.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic, sleep

from .process import Block, Program

__all__ = ["QUIET_CORES", "quiet_block", "wait_until_quiet"]

#: As much of a core as others may take.
QUIET_CORES = 0.15
LOOK_S = 0.3
PATIENCE_S = 0.5
REPEATS = 2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """Return the CPU seconds that all cores have worked since boot, including time stolen by its host."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def wait_until_quiet() -> None:
    """Return when the machine has been quiet for a moment, or after half a second in any case."""
    deadline = monotonic() + PATIENCE_S
    while monotonic() < deadline:
        began, before = monotonic(), busy_s()
        sleep(LOOK_S)
        if (busy_s() - before) / (monotonic() - began) < QUIET_CORES:
            return


def quiet_block(program: Program, **order: float) -> tuple[Block, float]:
    """Return a block and the cores that other processes kept busy meanwhile; repeat while there were too many."""
    tried: list[tuple[Block, float]] = []
    while len(tried) < REPEATS and (not tried or tried[-1][1] > QUIET_CORES):
        wait_until_quiet()
        before = busy_s() - program.cpu_s()
        block = program.block(**order)
        tried.append((block, max(0.0, (busy_s() - program.cpu_s() - before) / block.wall_s)))
    return min(tried, key=lambda one: one[1])
