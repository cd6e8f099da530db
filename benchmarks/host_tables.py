"""Cost of the tables `host.*` for the host server: `python -m benchmarks.host_tables`.

Runs in this process: the CPU time of one look at the host's counters, which the server takes every five seconds, the
memory of an hour of them, and the CPU time of what is read when a query asks. The target takes no part.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from statistics import quantiles
from time import thread_time

from probe_agent.host import History, LogUnreadable, disks, events, network, pressure, read_log
from probe_agent.host.history import INTERVAL_S, KEPT
from probe_agent.host.sample import Sample
from probe_agent.procfs import Process
from probe_agent.track import Track

from .machine import provenance
from .spread import table

__all__ = ["main"]

ROUNDS = 200


def cpu_us(call: Callable[[], object]) -> list[float]:
    took = []
    for _ in range(ROUNDS):
        began = thread_time()
        call()
        took.append((thread_time() - began) * 1e6)
    return took


def show(values: list[float]) -> str:
    low, middle, high = quantiles(values, n=4)
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def kernel_log() -> None:
    try:
        list(events(read_log()[0]))
    except LogUnreadable:
        return


def an_hour_mib() -> tuple[float, int]:
    """Return the memory that a full hour of this host's tracks takes, and the number of tracks."""
    history = History()
    history.group_of(os.getpid())
    samples: list[Sample] = [
        sample for read in (network.network, disks.disks, history._pressure) for sample in read().values()
    ]
    tracemalloc.start()
    tracks = [Track(len(sample.counters) + len(sample.gauges), KEPT) for sample in samples]
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return taken / 2**20, len(tracks)


def main() -> None:
    text = Process(os.getpid()).read("cgroup")
    looks = {
        "network": network.network,
        "pressure of the host": pressure.of_host,
        "pressure and limits of one control group": lambda: pressure.of_group(text),
        "disks": disks.disks,
    }
    asked = {
        "host.kernel_log": kernel_log,
        "host.disks, the mounts of one process": lambda: disks.uses(Process(os.getpid())),
    }
    seen = {name: cpu_us(read) for name, read in looks.items()}
    sums = [sum(one_round) for one_round in zip(*seen.values(), strict=True)]
    rows = [[name, show(took)] for name, took in seen.items()]
    rows.append([f"all of a look, every {INTERVAL_S:g} s", show(sums)])
    rows += [[f"{name}, when a query asks", show(cpu_us(read))] for name, read in asked.items()]
    print(f"Medians and quartiles of {ROUNDS} rounds, CPU time of the thread.\n")
    print(table(["what", "µs"], rows))
    memory, num = an_hour_mib()
    print(f"\nAn hour of samples: {memory:.2f} MiB for {num} devices, disks and groups.\n")
    print(provenance())


if __name__ == "__main__":
    main()
