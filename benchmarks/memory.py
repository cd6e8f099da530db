"""Memory that the recorder adds to the target: `python -m benchmarks.memory`.

Each process trains, gets the recorder, trains on, is detached from, and trains on. As many processes do the same
without the recorder: the memory of a job changes by itself, and only the difference is ours. Ring files lie in
shared memory, so they are counted separately: the part that the target has mapped, and the files themselves.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median

from .agent import attach, detach
from .machine import provenance
from .process import Program
from .spread import table

__all__ = ["main"]

MIB = 1024.0 * 1024.0
#: Kinds of resident memory, as /proc/PID/status names them. Not PSS: its share of torch's pages changes with every
#: other process that has torch loaded.
KINDS = ("RssAnon", "RssFile", "RssShmem")
STEPS = {"mlp": 3_000, "gpt": 60}

Memory = dict[str, float]


def memory(pid: int) -> Memory:
    """Return the MiB of each kind."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        kind, _, rest = line.partition(":")
        if kind in KINDS:
            found[kind] = int(rest.split()[0]) / 1024
    return found


def ring_files_mib(pid: int) -> float:
    """Return the shared memory that the target's ring files occupy."""
    folders = Path(f"/dev/shm/probe-{os.getuid()}").glob(f"{pid}-*")
    return sum(file.stat().st_blocks * 512 for folder in folders for file in folder.glob("*.ring")) / MIB


def changes(model: str, num_steps: int, recorded: bool) -> tuple[Memory, Memory]:
    """Return how much more memory a process has with the recorder in it, and after the detach."""
    with Program("blocks", "--model", model) as training:
        training.block(steps=2 * num_steps)
        before = memory(training.pid)
        if recorded:
            attach(training, num_steps)
        else:
            training.block(steps=2 * num_steps)
        training.block(steps=num_steps)
        during = memory(training.pid)
        rings = ring_files_mib(training.pid)
        if recorded:
            detach(training, num_steps)
        else:
            training.block(steps=num_steps)
        training.block(steps=num_steps)
        after = memory(training.pid)
    return (
        {**{kind: during[kind] - before[kind] for kind in KINDS}, "rings": rings},
        {kind: after[kind] - before[kind] for kind in KINDS},
    )


def _show(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _rows(model: str, num_steps: int, num_processes: int) -> list[list[object]]:
    seen: dict[bool, list[tuple[Memory, Memory]]] = {True: [], False: []}
    for _ in range(num_processes):
        for recorded in seen:
            seen[recorded].append(changes(model, num_steps, recorded))
    own: Callable[[Memory], float] = lambda change: change["RssAnon"] + change["RssFile"]  # noqa: E731
    rows: list[list[object]] = []
    for name, at in (("attached", 0), ("after detach", 1)):
        with_us, without = ([own(pair[at]) for pair in seen[recorded]] for recorded in (True, False))
        rows.append(
            [
                f"{model}, {name}",
                _show(with_us),
                _show(without),
                f"{median(with_us) - median(without):.2f}",
                _show([pair[at]["RssShmem"] for pair in seen[True]]),
                _show([pair[0]["rings"] for pair in seen[True]]) if at == 0 else "0",
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=5, help="processes of each kind")
    parser.add_argument("--model", choices=tuple(STEPS), action="append", help="models to train; all by default")
    args = parser.parse_args()
    rows = [row for model in args.model or STEPS for row in _rows(model, STEPS[model], args.processes)]
    headings = [
        "MiB more than before", "with the recorder", "the same process left alone", "ours besides rings",
        "mapped of the rings", "ring files",
    ]  # fmt: skip
    print(f"Medians and ranges of {args.processes} processes; resident anonymous and file pages.\n")
    print(table(headings, rows))
    print()
    print(provenance())


if __name__ == "__main__":
    main()
