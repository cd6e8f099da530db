"""Cost of the `.pth` file for every Python that starts while PROBE is unset: `python -m benchmarks.startup`.

Two environments that differ in that one file start `python -c pass` in turn, in pairs of shuffled order; the figure is
the difference within a pair. Also the same work without a process around it, which noise cannot hide: one process
has `site` read the file repeatedly. In a virtual environment `site` reads it twice per start.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from probe_agent import activate

from .machine import provenance
from .process import plain_environment
from .spread import figure, table

__all__ = ["main", "pairs"]

PTH = Path(activate.__file__).parent / "probe_training.pth"
READ_IT = """
import site, sys, time
folder, num = sys.argv[1], int(sys.argv[2])
for _ in range(num):
    began = time.perf_counter()
    site.addpackage(folder, "probe_training.pth", set())
    print(time.perf_counter() - began)
"""


def environment(folder: Path, with_file: bool) -> Path:
    """Make a fresh virtual environment without any package; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    if with_file:
        shutil.copy(PTH, site_packages(folder))
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    return next(folder.glob("lib/python*/site-packages"))


def start(python: Path) -> tuple[float, float]:
    """Return the wall-clock and CPU seconds from the start of `python -c pass` to its end."""
    began = perf_counter()
    pid = os.posix_spawn(python, [python, "-c", "pass"], plain_environment())
    _, status, usage = os.wait4(pid, 0)
    took = perf_counter() - began
    assert status == 0, status
    return took, usage.ru_utime + usage.ru_stime


def pairs(without: Path, with_file: Path, num: int) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Return the durations of a start without and with the file, pair by pair."""
    draw = random.Random(0)
    for python in (without, with_file) * 5:
        start(python)
    seen = []
    for _ in range(num):
        if draw.random() < 0.5:
            first = start(without)
            seen.append((first, start(with_file)))
        else:
            last = start(with_file)
            seen.append((start(without), last))
    return seen


def read_once(python: Path, num: int) -> list[float]:
    """Return the seconds that `site` takes to read the file and run its line, in one process."""
    command = [python, "-c", READ_IT, site_packages(python.parents[1]), str(num)]
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def rows(seen: Sequence[tuple[tuple[float, float], tuple[float, float]]], read: Sequence[float]) -> list[list[object]]:
    """Return the lines of the table, in milliseconds."""
    lines: list[list[object]] = []
    for at, name in enumerate(("time", "CPU time")):
        without, with_file = ([pair[arm][at] for pair in seen] for arm in (0, 1))
        change = figure([new - old for old, new in zip(without, with_file, strict=True)])
        lines.append(
            [
                f"`python -c pass`, {name}",
                figure(without).show(1e3, 2),
                figure(with_file).show(1e3, 2),
                change.show(1e3, 3),
                len(seen),
            ]
        )
    lines.append(["the file alone, read by `site`", "-", "-", figure(read).show(1e3, 3), len(read)])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000)
    parser.add_argument("--reads", type=int, default=1_000, help="reads of the file by one process")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        without = environment(Path(folder) / "without", False)
        with_file = environment(Path(folder) / "with", True)
        lines = rows(pairs(without, with_file, args.pairs), read_once(with_file, args.reads))
    headings = ["PROBE unset; ms", "without the file", "with it", "difference", "pairs"]
    print("Medians, and the 95 % interval of each.\n")
    print(table(headings, lines))
    print()
    print(provenance())


if __name__ == "__main__":
    main()
