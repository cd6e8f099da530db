"""Cost of `memory` and `memory --leaks` on the job: `python -m benchmarks.leaks`.

A small job of `tests/targets/leaking.py` trains with the recorder in it. In each round the median step is taken from
`python.steps` before a command and while it runs; the ratio of the two, with its spread over the rounds, is the cost.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from .machine import provenance
from .process import plain_environment
from .spread import table

__all__ = ["main"]

TARGET = Path(__file__).parents[1] / "tests/targets/leaking.py"
PROBE = Path(sys.executable).parent / "probe"
WAYS = {"memory": ["memory"], "memory --leaks": ["memory", "--leaks", "--seconds", "3"]}


def _probe(pid: int, *arguments: str) -> str:
    return subprocess.run([PROBE, str(pid), *arguments], capture_output=True, text=True, timeout=300).stdout


def _step_s(pid: int, since: float) -> float:
    sql = f"SELECT median(duration) AS s FROM python.steps WHERE epoch(ts) > {since!r}"
    return float(json.loads(_probe(pid, "query", sql, "--format", "json"))[0]["s"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args(arguments).rounds
    with TemporaryDirectory() as folder:
        command = [sys.executable, str(TARGET), "healthy", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=plain_environment()) as job:
            try:
                assert job.stdout is not None
                job.stdout.readline()
                _probe(job.pid, "inject")
                rows = [[name, *_measured(job.pid, ways, rounds)] for name, ways in WAYS.items()]
            finally:
                job.kill()
    print(provenance())
    print(table(("command", "step before, ms", "step meanwhile, ms", "ratio", "spread of the ratio"), rows))


def _measured(pid: int, way: list[str], rounds: int) -> list[str]:
    before, meanwhile = [], []
    for _ in range(rounds):
        began = time.time()
        time.sleep(3)
        before.append(_step_s(pid, began))
        began = time.time()
        _probe(pid, *way)
        meanwhile.append(_step_s(pid, began))
    ratios = sorted(after / usual for usual, after in zip(before, meanwhile, strict=True))
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    return [f"{median(before) * 1e3:.1f}", f"{median(meanwhile) * 1e3:.1f}", f"{median(ratios):.2f}", spread]


if __name__ == "__main__":
    main()
