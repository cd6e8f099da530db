"""Protocol between a benchmark and its program: a JSON line on stdin, and one on stdout in answer.

Runs in the measured program, between its blocks. Standard library only: the program may run on any Python.
"""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable
from time import perf_counter_ns, process_time_ns, thread_time_ns

from instructions import counter, read

__all__ = ["Piece", "now", "serve_blocks", "told"]

#: Begin and end of a step or of a gap: CLOCK_MONOTONIC in nanoseconds, the same clock for all processes.
Piece = tuple[int, int]


def now() -> int:
    """Return CLOCK_MONOTONIC in nanoseconds."""
    return perf_counter_ns()


def told() -> bool:
    """Return whether the next command has arrived."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def serve_blocks(about: dict[str, object], run: Callable[[dict[str, float]], list[Piece]]) -> None:
    """Report that the program is ready, then run one block for each line on stdin until it ends."""
    instructions = counter()
    _say({"ready": True, **about})
    for line in sys.stdin:
        order = json.loads(line)
        began, cpu_began, thread_began, count_began = now(), process_time_ns(), thread_time_ns(), read(instructions)
        pieces = run(order)
        wall, cpu, thread = now() - began, process_time_ns() - cpu_began, thread_time_ns() - thread_began
        count = read(instructions) - count_began
        lengths = sorted(end - begin for begin, end in pieces) or [0]
        _say(
            {
                "num_pieces": len(pieces),
                "wall_s": wall * 1e-9,
                "cpu_s": cpu * 1e-9,
                "thread_cpu_s": thread * 1e-9,
                "instructions": count,
                "median_s": lengths[len(lengths) // 2] * 1e-9,
                "longest_s": lengths[-1] * 1e-9,
                **({"pieces_ns": pieces} if order.get("pieces") else {}),
            }
        )


def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)
