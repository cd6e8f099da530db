"""Time and CPU time of commands, beside an earlier version: `python -m benchmarks.commands --before CHECKOUT`.

Each case runs for both versions in turn, in shuffled order. CPU time is that of the command alone. A version before the
lingering server has its host server at the user's own place, where no other may run:
`unshare -m sh -c 'mount -t tmpfs none /dev/shm; …'` gives it one.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from .machine import provenance
from .process import Program, plain_environment
from .spread import figure, table

__all__ = ["Version", "main"]

START = "import sys; sys.path[0] = sys.argv.pop(1); from probe_cli.main import main; main()"
Sample = tuple[float, float]


@dataclass
class Version:
    """A checkout of Probe, and the folder of its host server."""

    root: Path
    runtime: str
    lingers: bool
    seen: dict[str, list[Sample]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {**plain_environment(), **({"PROBE_RUNTIME_DIR": self.runtime} if self.lingers else {})}

    def run(self, *words: str) -> Sample:
        """Return wall-clock and CPU seconds of one command."""
        null = os.open(os.devnull, os.O_RDWR)
        began = perf_counter()
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", START, str(self.root), *words],
            self.environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, null, at) for at in range(3)],
        )
        _, status, usage = os.wait4(pid, 0)
        took = perf_counter() - began
        os.close(null)
        assert status == 0, (words, status)
        return took, usage.ru_utime + usage.ru_stime

    def stop(self) -> None:
        """Have no host server."""
        if self.lingers:
            self.run("stop")

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Have a host server, one that lingers if there is such a thing."""
        if self.lingers:
            self.run("list")
            yield
            self.stop()
            return
        command = [sys.executable, "-c", START, str(self.root), "serve"]
        with subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            assert "listening" in server.stderr.readline()
            self.run("list")
            yield
            server.terminate()


def measure(versions: Sequence[Version], name: str, num: int, once: Callable[[Version], Sample]) -> None:
    """Run `once` for each version, `num` times each."""
    draw = random.Random(0)
    for _ in range(num):
        for version in draw.sample(versions, len(versions)):
            version.seen.setdefault(name, []).append(once(version))


def first(version: Version) -> Sample:
    """Measure a command that finds no host server."""
    version.stop()
    return version.run("list")


def fresh(version: Version) -> Sample:
    """Measure `backtrace` on a process without a recorder, from Enter to the stack."""
    with Program("spin") as target:
        sample = version.run(str(target.pid), "backtrace")
        version.run(str(target.pid), "detach", "--keep")
        with suppress(AssertionError):
            version.run("list")  # the last detach has ended the server: have one again
    return sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--realtime", action="store_true", help="as root on a busy machine: go before everything else")
    args = parser.parse_args()
    if args.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    here = Path(__file__).resolve().parents[1]
    with TemporaryDirectory(prefix="probe-") as folder:
        versions = [Version(here, folder, lingers=True)]
        if args.before is not None:
            root = args.before.resolve()
            versions.insert(0, Version(root, folder, lingers=(root / "probe_agent" / "server" / "start.py").exists()))
        for version in versions:
            version.runtime = f"{folder}/{versions.index(version)}"
            os.mkdir(version.runtime, 0o700)
            version.run("list")  # compiles what there is to compile
        measure(versions, "`probe --help`", args.runs, lambda version: version.run("--help"))
        measure(versions, "`probe list`, no host server yet", args.runs, first)
        with Program("spin") as target:
            pid = str(target.pid)
            servers = [version.serving() for version in versions]
            for server in servers:
                server.__enter__()
            versions[-1].run(pid, "inject")
            measure(versions, "`probe list`, with a host server", args.runs, lambda version: version.run("list"))
            words = (pid, "query", "SELECT count(*) FROM python.steps")
            measure(versions, "`probe PID query`, with a host server", args.runs, lambda version: version.run(*words))
            measure(versions, "`probe PID backtrace`, fresh target, with a host server", args.runs, fresh)
            for server in servers:
                server.__exit__(None, None, None)
        for version in versions:
            version.stop()
    lines = []
    for name in versions[0].seen:
        line: list[object] = [name]
        for version in versions:
            wall, cpu = zip(*version.seen[name], strict=True)
            line += [figure(list(wall)).show(1e3, 0), figure(list(cpu)).show(1e3, 0)]
        lines.append(line)
    which = ("before: ", "now: ") if len(versions) > 1 else ("",)
    heads = [name + what for name in which for what in ("time", "CPU")]
    print("Milliseconds; medians, and the 95 % interval of each.\n")
    print(table(["command", *heads], lines))
    print()
    print(provenance())


if __name__ == "__main__":
    main()
