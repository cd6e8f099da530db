"""Duration of a query over a million rows: `python -m benchmarks.query`.

The rows are real: a training process of 37 modules records every step until its ring of python.torch_trace holds
1,000,000 rows. Queries go over HTTP on one kept connection (unix socket and TCP loopback), and through `probe PID
query`, a process each time; while the job rests, and while it runs on the other core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection

from .agent import attach, detach, timed_command
from .http_query import ask, host_server, times
from .machine import provenance
from .process import Program
from .spread import figure, table
from .statements import COUNT, STATEMENTS

__all__ = ["RING_ROWS", "fill", "main"]

RING_ROWS = 1_000_000


def fill(training: Program, num_rows: Callable[[], int]) -> int:
    """Train until a query returns a million rows, or no more than 4,000 steps before; return the number of rows."""
    before, now = -1, 0
    while before < now < RING_ROWS:
        training.block(steps=4_000)
        before, now = now, num_rows()
    return now


def while_training(training: Program, act: Callable[[], list[float]], num_steps: int) -> list[float]:
    """Return the result of `act` while the job runs; it must not outlast the steps."""
    training.begin(steps=num_steps)
    seen = act()
    block = training.end()
    if sum(seen) > block.wall_s:
        raise RuntimeError(f"{sum(seen):.1f} s of queries outlasted {block.wall_s:.1f} s of training")
    return seen


def _row(
    name: str, sql: str, training: Program, connections: dict[str, HTTPConnection], num_asked: int, num_commands: int
) -> list[object]:
    row: list[object] = [name]
    for connection in connections.values():
        asked = partial(times, connection, partial(ask, connection, training.pid, sql), num_asked)
        resting = asked()
        num_steps = 1_000 + int(sum(resting) * 3 / 0.8e-3)
        row += [figure(seen).show(1e3, 1) for seen in (resting, while_training(training, asked, num_steps))]
    command = [timed_command(str(training.pid), "query", sql) for _ in range(num_commands)]
    return [*row, figure(command).show(1e3, 0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=50, help="HTTP requests per statement")
    parser.add_argument("--commands", type=int, default=15, help="`probe PID query` commands per statement")
    args = parser.parse_args()
    environment = {"PROBE_TRACE_ROWS": str(RING_ROWS)}
    with Program("blocks", "--model", "mlp", environment=environment) as training, host_server() as connections:
        attach(training, 100, {"trace.every": 1, "trace.budget": 0})
        connection = connections["TCP"]

        def count() -> int:
            connection.close()
            return int(ask(connection, training.pid, COUNT)[0][0])

        num_rows = fill(training, count)
        rows = [
            _row(name, sql, training, connections, args.questions, args.commands) for name, sql in STATEMENTS.items()
        ]
        detach(training, 100)
    headings = [
        "statement", "unix socket, job rests", "job runs", "TCP, job rests", "job runs",
        "`probe PID query`, job rests",
    ]  # fmt: skip
    print(
        f"{num_rows:,} rows of python.torch_trace. Milliseconds, medians with their 95 % interval, of "
        f"{args.questions} HTTP questions and {args.commands} commands a cell.\n"
    )
    print(table(headings, rows))
    print()
    print(provenance())


if __name__ == "__main__":
    main()
