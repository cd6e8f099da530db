"""Size and time of an export: `python -m benchmarks.export`.

A job trains on several ranks until each has the steps that are exported, and goes on as they are. Every kind is written
several times by `probe` in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from .agent import attach
from .machine import provenance
from .process import Program, plain_environment
from .spread import figure, table

__all__ = ["main"]

COMMAND = [sys.executable, "-c", "from probe_cli.main import main; main()"]
MIB = 1 << 20
TABLES = ("python.steps", "python.torch_trace", "python.collectives")


def _size_mib(path: Path) -> float:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / MIB


def _exported(words: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return the seconds that one `probe … export` takes, and its CPU seconds."""
    began, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    tables = [word for name in TABLES for word in ("--table", name)]
    kinds = {
        "--perfetto FILE.json": ["--perfetto", "job.json", "--steps", str(args.steps)],
        "--perfetto FILE.json.gz": ["--perfetto", "job.json.gz", "--steps", str(args.steps)],
        "--parquet FOLDER, three tables": ["--parquet", "tables", *tables],
        "--duckdb FILE, three tables": ["--duckdb", "job.duckdb", *tables],
    }
    took: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    sizes: dict[str, float] = {}
    with TemporaryDirectory(prefix="probe-") as runtime, Program("blocks", "--ranks", str(args.ranks)) as job:
        environment = {**plain_environment(), "PROBE_RUNTIME_DIR": runtime, "PROBE_LINGER": "60"}
        attach(job, 2 * args.steps)
        named = [word for pid in job.pids for word in ("-t", str(pid))]
        for number in range(args.rounds + 1):
            for kind, (option, name, *rest) in kinds.items():
                path = Path(runtime) / f"{number}-{name}"
                seconds = _exported([*named, "export", option, str(path), *rest], environment)
                if number:  # the first of each kind starts the server, or fills caches
                    took[kind].append(seconds)
                sizes[kind] = _size_mib(path)
    rows = [
        [kind, f"{sizes[kind]:.2f} MiB", *(figure(list(seen)).show(unit="s") for seen in zip(*took[kind], strict=True))]
        for kind in kinds
    ]
    print(
        f"{args.ranks} ranks of a model of 37 modules, {args.steps} steps; medians of {args.rounds}. The job waits.\n"
    )
    print(table(["export", "size", "time", "CPU time of the command"], rows))
    print()
    print(provenance())


if __name__ == "__main__":
    main()
