"""Duration and traffic of one SQL statement over many hosts: `python -m benchmarks.fanout`.

The hosts are simulated (simulated.py): rings of 8 ranks each, and real host servers on loopback addresses, 16 to a
process, which share the machine with the command. A real host has its own cores, so the figures are a worst case.
Each measured `probe … query` is a new process; the traffic is what EXPLAIN reports. `--delay` delays every byte to and
from the first host, each way (relay.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from probe_agent.recorder.ring.table import Column, Table

from .agent import PROBE
from .machine import provenance
from .process import plain_environment
from .simulated import SERVERS_A_PROCESS, add_target, addresses_of, serving
from .spread import figure, table

__all__ = ["STATEMENTS", "main"]

NUM_RANKS = 8


class Steps(Table):
    name = "sim.steps"
    doc = "One row a step."
    columns = (
        Column("ts", "time", "", ""),
        Column("step", "int", "", ""),
        Column("duration", "float", "s", ""),
        Column("data_wait", "float", "s", ""),
    )


class Saves(Table):
    name = "sim.saves"
    doc = "One row a checkpoint."
    columns = (Column("step", "int", "", ""), Column("seconds", "float", "s", ""))


STATEMENTS = {
    "aggregate": "SELECT rank, count(*), avg(duration), stddev(duration) FROM sim.steps GROUP BY rank ORDER BY rank",
    "top 10": "SELECT host, rank, step, duration FROM sim.steps ORDER BY duration DESC LIMIT 10",
    "newest steps": (
        "SELECT rank, avg(duration) FROM sim.steps WHERE step > (SELECT max(step) - 5 FROM sim.steps)"
        " GROUP BY rank ORDER BY rank"
    ),
    "join": (
        "SELECT s.rank, max(s.duration) - median(c.seconds) AS most FROM sim.steps s JOIN sim.saves c"
        " ON s.step = c.step AND s.rank = c.rank WHERE s.step > 980 GROUP BY s.rank ORDER BY most DESC LIMIT 10"
    ),
}


def _fill(base: Path, num_hosts: int, num_rows: int) -> None:
    draw = random.Random(0)
    steps = [(n, n, draw.random(), draw.random()) for n in range(num_rows)]
    saves = [(n, draw.random()) for n in range(0, num_rows, 20)]
    for host in range(num_hosts):
        for local in range(NUM_RANKS):
            rank = host * NUM_RANKS + local
            where = base / str(host // SERVERS_A_PROCESS) / str(host % SERVERS_A_PROCESS)
            tables = [(Steps, steps[rank % 7 :]), (Saves, saves)]
            add_target(where, f"host{host}", 1_000_000 + rank, rank, num_hosts * NUM_RANKS, tables)


@contextmanager
def _one_behind_a_slow_link(addresses: list[str], delay_s: float) -> Iterator[list[str]]:
    """Yield the same hosts with a slow link to the first."""
    if not delay_s:
        yield addresses
        return
    command = [sys.executable, "-m", "benchmarks.relay", addresses[0], str(delay_s), str(delay_s)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=plain_environment()
    ) as relay:
        assert relay.stdout is not None
        yield [relay.stdout.readline().strip(), *addresses[1:]]
        relay.terminate()


def _asked(addresses: list[str], sql: str) -> tuple[float, float, str]:
    """Return the seconds on the clock, the CPU seconds of the command, and its output."""
    named = [word for address in addresses for word in ("-t", address)]
    before = os.times()
    done = subprocess.run(
        [PROBE, *named, "query", sql, "--format", "json", "--timeout", "60", "--host-timeout", "60"],
        capture_output=True,
        text=True,
        env=plain_environment(),
        check=False,
        timeout=120,
    )
    after = os.times()
    if done.returncode:
        raise RuntimeError(f"the query ended with {done.returncode}: {done.stderr[-1000:]}")
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return after.elapsed - before.elapsed, cpu_s, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rows", type=int, default=1_000, help="steps per rank")
    parser.add_argument("--questions", type=int, default=5, help="of each statement")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds each way, to the first host")
    args = parser.parse_args()
    rows: list[list[object]] = []
    for num_hosts in args.hosts:
        direct = addresses_of(num_hosts)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            _fill(Path(folder), num_hosts, args.rows)
            with (
                serving(Path(folder), direct) as servers_cpu_s,
                _one_behind_a_slow_link(direct, args.delay) as addresses,
            ):
                for name, sql in STATEMENTS.items():
                    explained = json.loads(_asked(addresses, f"EXPLAIN {sql}" if num_hosts > 1 else sql)[2])
                    # That was to warm up what was just started, too.
                    rounds = explained["rows"] if num_hosts > 1 else []  # a single host is not asked in rounds
                    moved = sum(step["bytes"] for step in rounds)
                    before_s = servers_cpu_s()
                    seen = [_asked(addresses, sql) for _ in range(args.questions)]
                    server_ms = 1e3 * (servers_cpu_s() - before_s) / args.questions / num_hosts
                    rows.append(
                        [
                            num_hosts, num_hosts * NUM_RANKS, name, figure([each[0] for each in seen]).show(1, 2),
                            f"{median(each[1] for each in seen):.2f}", f"{server_ms:.1f}", len(rounds) or 1,
                            f"{moved / 1024:,.0f}" if rounds else "-",
                        ]
                    )  # fmt: skip
    print(f"{args.rows:,} steps a rank. Medians of {args.questions} commands with their 95 % interval.\n")
    if args.delay:
        print(f"The first host is {args.delay * 1e3:g} ms away, each way.\n")
    headings = [
        "hosts",
        "ranks",
        "statement",
        "s",
        "CPU s of the command",
        "CPU ms of a server and its workers",
        "tables asked",
    ]
    print(table([*headings, "KiB moved"], rows))
    print()
    print(provenance())


if __name__ == "__main__":
    main()
