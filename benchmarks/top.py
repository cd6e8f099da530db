"""Cost of an open `probe top` for the job and the host server: `python -m benchmarks.top`.

The screen runs on a terminal of its own, over a job that trains. Blocks with it and without it alternate; the job's CPU
time a step is compared pair by pair. The server's CPU time is that of all its processes.
"""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic, sleep

from .agent import attach
from .machine import provenance
from .process import Program, plain_environment
from .spread import ratio, table

__all__ = ["main"]

COMMAND = [sys.executable, "-c", "from probe_cli.main import main; main()"]
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def _server_pids(runtime: str) -> list[int]:
    """Return the host server whose socket is in this folder, and the processes that it has started."""
    parents, found = {}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, stat = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
        except OSError:
            continue
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
        if f"--socket\0{runtime}/".encode() in words:
            found.add(int(folder.name))
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


@contextmanager
def _screen(words: list[str], environment: dict[str, str], interval_s: float) -> Iterator[int]:
    """`probe … top` on a terminal of 140 columns; yields its PID."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, *words, "top", "-n", str(interval_s)]
    size = {"COLUMNS": "140", "LINES": "40", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment | size) as process:
        os.close(theirs)

        def read() -> None:
            try:
                while os.read(ours, 65536):
                    pass
            except OSError:
                return  # the screen has gone

        reader = Thread(target=read, daemon=True)
        reader.start()
        try:
            yield process.pid
        finally:
            os.write(ours, b"q")
            process.wait(30)
    os.close(ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of a block")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds from look to look")
    args = parser.parse_args()
    shares: dict[str, list[float]] = {"the host server": [], "top itself": []}
    bare: list[float] = []
    watched: list[float] = []
    with (
        TemporaryDirectory(prefix="probe-") as runtime,
        Program("blocks", "--model", "mlp", "--ranks", str(args.ranks)) as job,
    ):
        environment = {**plain_environment(), "PROBE_RUNTIME_DIR": runtime}
        attach(job, 400)
        words = [word for pid in job.pids for word in ("-t", str(pid))]
        for _ in range(args.rounds):
            bare.append(_job_s(job, args.seconds))
            with _screen(words, environment, args.interval) as pid:
                _until_it_has_looked(runtime)
                began, before = monotonic(), {"top itself": _cpu_s(pid), "the host server": _server_s(runtime)}
                watched.append(_job_s(job, args.seconds))
                took = monotonic() - began
                shares["top itself"].append((_cpu_s(pid) - before["top itself"]) / took)
                shares["the host server"].append((_server_s(runtime) - before["the host server"]) / took)
        for pid in _server_pids(runtime):
            os.kill(pid, 15)
    change = ratio(watched, bare)
    rows: list[list[object]] = [["the job, CPU time a step", change.show_change()]]
    rows += [
        [
            name,
            f"{60 * sum(seen) / len(seen):.2f} s of CPU time a minute ({60 * min(seen):.2f} to {60 * max(seen):.2f})",
        ]
        for name, seen in shares.items()
    ]
    print(
        f"{args.ranks} ranks, a look every {args.interval:g} s, {args.rounds} pairs of blocks of {args.seconds:g} s.\n"
    )
    print(table(["who", "an open top costs"], rows))
    print()
    print(provenance())


def _job_s(job: Program, seconds: float) -> float:
    """CPU seconds of all ranks for a step of rank 0."""
    before = job.cpu_s()
    block = job.block(seconds=seconds)
    return (job.cpu_s() - before) / block.num_pieces


def _server_s(runtime: str) -> float:
    return sum(map(_cpu_s, _server_pids(runtime)))


def _until_it_has_looked(runtime: str) -> None:
    """Wait until the server is there and has settled: its start is not what an open screen costs."""
    deadline = monotonic() + 30
    while not _server_pids(runtime) and monotonic() < deadline:
        sleep(0.1)
    sleep(6)


if __name__ == "__main__":
    main()
