"""Cost of recording a collective for the thread that calls it: `python -m benchmarks.collectives`.

One process is a gloo group of one rank, so that an all_reduce is as short as possible. Blocks of calls with and
without the recorder's hook run in shuffled rounds, in CPU time of the calling thread. Also measured: how long reading
Flight Recorder holds the GIL, which our own thread does if C++ calls collectives.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from time import perf_counter, thread_time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from probe_agent.recorder.config import Settings
from probe_agent.recorder.guest.failures import Errors, Failures
from probe_agent.recorder.hooks import collectives
from probe_agent.recorder.ring.buffer import RowBuffer
from probe_agent.recorder.source import Recorder
from probe_agent.recorder.torch import flight_recorder

from .machine import provenance
from .spread import figure, table

__all__ = ["main"]

Call = Callable[[list[torch.Tensor]], None]


def by_method(tensors: list[torch.Tensor]) -> None:
    dist.all_reduce(tensors[0])


def coalesced(tensors: list[torch.Tensor]) -> None:
    dist.group.WORLD.allreduce_coalesced(tensors).wait()


def by_operator(tensors: list[torch.Tensor]) -> None:
    functional.wait_tensor(functional.all_reduce(tensors[0], "sum", dist.group.WORLD))


def block(call: Call, tensors: list[torch.Tensor], num_calls: int) -> float:
    """Return the seconds of this thread's CPU time per call."""
    began = thread_time()
    for _ in range(num_calls):
        call(tensors)
    return (thread_time() - began) / num_calls


def compare(call: Call, tensors: list[torch.Tensor], num_rounds: int, num_calls: int) -> list[object]:
    """Return the seconds per call, bare and with the hook, and the difference round by round."""
    seen: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(num_rounds):
        for recorded in random.sample((False, True), 2):
            recorder = Recorder(Settings({}), Failures(RowBuffer(Errors)).record)
            source = collectives.Source(recorder)
            if recorded:
                source.start()
                source.tick()
            seen[recorded].append(block(call, tensors, num_calls))
            source.stop()
            recorder.close()
    extra = [with_hook - bare for bare, with_hook in zip(seen[False], seen[True], strict=True)]
    return [figure(values).show(1e6, 2) for values in (seen[False], seen[True], extra)]


def looks(num: int) -> list[float]:
    """Return the seconds that a dump of all entries takes, and their number."""
    taken = []
    for _ in range(num):
        began = perf_counter()
        list(flight_recorder.dumps(with_entries=True))
        taken.append(perf_counter() - began)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="pairs of blocks")
    parser.add_argument("--calls", type=int, default=1_000, help="collectives per block")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    block(by_method, [torch.ones(1)], 2_100)  # Flight Recorder is full from here on
    look = figure(looks(args.rounds))
    rows: list[list[object]] = [
        ["all_reduce of one tensor", *compare(by_method, [torch.ones(1)], args.rounds, args.calls)],
        ["the same by an operator, as DTensor's", *compare(by_operator, [torch.ones(1)], args.rounds, args.calls)],
        [
            "all_reduce of 100 tensors at once",
            *compare(coalesced, [torch.ones(1)] * 100, args.rounds, args.calls // 10),
        ],
    ]
    dist.destroy_process_group()
    print(
        "Microseconds of the calling thread's CPU time, medians with their 95 % interval of "
        f"{args.rounds} pairs of blocks.\n"
    )
    print(table(["call", "bare", "recorded", "difference"], rows))
    print(f"\nA look at Flight Recorder, 2,000 entries: {look.show(1e3, 1, 'ms')}.\n")
    print(provenance())


if __name__ == "__main__":
    main()
