"""A training job and its owner while 50 readers attack the host server: `python -m benchmarks.soak`.

Rounds of two blocks in shuffled order: one job works while the readers send the worst statements there are, over
TCP with the read token, and its twin works without requests. Both have the recorder in them, and the throughput
is compared within a round. The owner queries over the unix socket four times a second in both. The readers' own CPU
time is not the host's in real life, so their process runs at the lowest priority.

Prints the owner's latency, the memory of the server and of its workers, and the throughput relative to the twin.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import quantiles
from time import monotonic, perf_counter, sleep

from .agent import PROBE, attach, detach
from .http_query import UnixConnection, ask, free_port, wait_until_connected
from .machine import provenance
from .process import Program, plain_environment, tree_cpu_s
from .spread import figure, ratio, table

__all__ = ["WORST", "main"]

WORST = (
    "SELECT len(range(20000000))",
    "SELECT len(range(150000000))",
    "SELECT len(list_resize([1], 1000000000, 0))",
    "SELECT lpad('x', 1000000000, 'y')",
    "SELECT repeat('x', 1000000000)",
    "SELECT repeat('x', 1000000) FROM range(400)",
    " UNION ALL ".join(["SELECT 1"] * 20_000),
    "SELECT " + "(" * 20_000,
    "SELECT " + "[" * 5_000 + "1" + "]" * 5_000,
    "WITH a AS (" * 12 + "SELECT 1",
    "SELECT string_agg(a.range::VARCHAR, ',') FROM range(100000) a, range(100000) b",
    "SELECT a.range FROM range(100000) a, range(100000) b ORDER BY hash(a.range, b.range)",
    "SELECT count(*) FROM range(10000000) a JOIN range(10000000) b ON a.range < b.range",
    "SELECT regexp_replace(repeat('ab', 10000000), '((a*)*b*)*c', 'x', 'g')",
    "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE hash(a.range, b.range) = 1",
    "SELECT a.module, count(*) FROM python.torch_trace a, python.torch_trace b, python.torch_trace c GROUP BY ALL",
    "SELECT * FROM python.stacks",
)
NUM_READERS = 50
BLOCK_S = 15.0
OWNERS = "SELECT count(*), max(step) FROM python.steps"
#: What a server may hold, and a worker: the memory of a query, its slack, and what it is at its start.
SERVER_MIB, WORKER_MIB = 256, 512 + 512 + 200
#: What is aimed at.
MOST_ANSWER_S, LEAST_THROUGHPUT = 1.0, 0.98


def read_for_ever(port: int, token: str) -> None:
    """Run 50 readers in this process until it is killed."""
    with suppress(OSError):
        os.nice(19)
        Path("/proc/self/autogroup").write_text("19")
    seen: Counter[int] = Counter()
    for at in range(NUM_READERS):
        threading.Thread(target=_read, args=(port, token, random.Random(at), seen), daemon=True).start()
    while True:
        sleep(1)
        print(json.dumps(seen), flush=True)


def _read(port: int, token: str, draw: random.Random, seen: Counter[int]) -> None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    while True:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/v1/query", json.dumps({"sql": draw.choice(WORST)}), headers)
            answer = connection.getresponse()
            answer.read()
            seen[answer.status] += 1
            if answer.status == 503:
                sleep(1.0)  # as the answer asks for
        except (OSError, HTTPException):
            seen[0] += 1
            sleep(0.1)
        finally:
            connection.close()


@contextmanager
def _readers(port: int, token: str, seen: Counter[str]) -> Iterator[int]:
    """Run the readers; yields the PID of their process."""
    command = [sys.executable, "-m", "benchmarks.soak", "--read", str(port), token]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        said, _ = process.communicate()
        lines = [line for line in said.splitlines() if line.endswith("}")]
        seen.update(json.loads(lines[-1]) if lines else {})


@contextmanager
def _server() -> Iterator[tuple[subprocess.Popen[bytes], str, int, str]]:
    """Run `probe serve` with a token of its own: its process, unix socket, port, and read token."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "host.sock")
        command = [PROBE, "serve", "--unix", path, "--listen", f"127.0.0.1:{port}"]
        environment = {**plain_environment(), "XDG_CONFIG_HOME": folder}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            wait_until_connected(UnixConnection(path))
            yield process, path, port, Path(folder, "probe", "token.read").read_text().strip()
        finally:
            process.terminate()
            process.wait()


class _Watch:
    """The owner's requests and a look at the memory, for as long as this is open."""

    def __init__(self, server: int, path: str, pid: int) -> None:
        self.answers_s: list[float] = []
        self.failures: list[str] = []
        self.server_mib = self.worker_mib = self.all_workers_mib = 0.0
        self._server, self._path, self._pid = server, path, pid
        self._over = threading.Event()
        self.attacked = False

    def __enter__(self) -> _Watch:
        self._threads = [threading.Thread(target=each) for each in (self._ask, self._look)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        while not self._over.wait(0.25):
            began, counts = perf_counter(), self.attacked
            connection = UnixConnection(self._path)
            try:
                ask(connection, self._pid, OWNERS)
                if counts:
                    self.answers_s.append(perf_counter() - began)
            except (OSError, HTTPException, RuntimeError) as failure:
                self.failures.append(str(failure))
            finally:
                connection.close()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            self.server_mib = max(self.server_mib, _resident_mib(self._server))
            workers = [_resident_mib(each) for each in _below(self._server)]
            self.worker_mib = max(self.worker_mib, *workers, 0.0)
            self.all_workers_mib = max(self.all_workers_mib, sum(workers))


def _below(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, task.read_text().split())
    return found[1:]


def _resident_mib(pid: int) -> float:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def soak(minutes: float) -> bool:
    """Run it and print the result; return whether all aims were met."""
    seen: Counter[str] = Counter()
    cores: dict[str, list[float]] = {"server and workers": [], "readers": []}
    rates: dict[str, list[float]] = {"attacked": [], "twin": []}
    cpu_s: dict[str, list[float]] = {"attacked": [], "twin": []}
    draw = random.Random(0)
    with _server() as (server, path, port, token), Program("blocks") as target, Program("blocks") as twin:
        for program in (target, twin):
            attach(program, 100, settle_s=2.0)
        ends = monotonic() + minutes * 60
        with _Watch(server.pid, path, target.pid) as watch:
            while monotonic() < ends:
                for name in draw.sample(list(rates), 2):
                    if name == "twin":
                        block = twin.block(seconds=BLOCK_S)
                    else:
                        with _readers(port, token, seen) as readers:
                            sleep(2.0)  # until all of them ask
                            watch.attacked = True
                            before = [tree_cpu_s(pid) for pid in (server.pid, readers)]
                            block = target.block(seconds=BLOCK_S)
                            watch.attacked = False
                            for pid, began, used in zip((server.pid, readers), before, cores.values(), strict=True):
                                used.append((tree_cpu_s(pid) - began) / block.wall_s)
                        sleep(1.0)
                    rates[name].append(block.num_pieces / block.wall_s)
                    cpu_s[name].append(block.thread_cpu_s / block.num_pieces)
            lives = server.poll() is None
        for program in (target, twin):
            detach(program, 100)
    return _report(rates, cpu_s, cores, watch, seen, lives)


def _report(
    rates: dict[str, list[float]],
    cpu_s: dict[str, list[float]],
    cores: dict[str, list[float]],
    watch: _Watch,
    seen: Counter[str],
    lives: bool,
) -> bool:
    throughput = ratio(rates["attacked"], rates["twin"])
    answers = sorted(watch.answers_s)
    p99 = quantiles(answers, n=100)[-1] if len(answers) > 1 else float("nan")
    spread = "; ".join(f"{name} {min(all_):,.0f} to {max(all_):,.0f} steps/s" for name, all_ in rates.items())
    rows = [
        ["owner's answers, median", f"{answers[len(answers) // 2] * 1e3:.0f} ms", f"{len(answers)} questions"],
        ["p99", f"{p99 * 1e3:.0f} ms", ""],
        ["longest", f"{answers[-1] * 1e3:.0f} ms", f"aim {MOST_ANSWER_S * 1e3:.0f} ms; {len(watch.failures)} failed"],
        ["server, most resident", f"{watch.server_mib:.0f} MiB", f"limit {SERVER_MIB} MiB"],
        ["largest worker", f"{watch.worker_mib:.0f} MiB", f"limit {WORKER_MIB} MiB"],
        ["all workers together", f"{watch.all_workers_mib:.0f} MiB", ""],
        ["throughput against the twin's", throughput.show_change(), f"aim {(LEAST_THROUGHPUT - 1) * 100:+.0f} %"],
        ["", spread, f"{len(rates['twin'])} rounds"],
        ["CPU time of a step against the twin's", ratio(cpu_s["attacked"], cpu_s["twin"]).show_change(), ""],
        *([f"cores used by {who}", figure(used).show(1, 2), ""] for who, used in cores.items()),
        ["readers' answers by status", ", ".join(f"{k}: {n}" for k, n in sorted(seen.items())), "0: hung up on"],
    ]
    print(table(["", "seen", ""], rows))
    print()
    print(provenance())
    for failure in watch.failures[:5]:
        print("the owner was not answered:", failure)
    is_well = answers[-1] <= MOST_ANSWER_S and not watch.failures and throughput.median >= LEAST_THROUGHPUT
    return lives and is_well and watch.server_mib <= SERVER_MIB and watch.worker_mib <= WORKER_MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--read", nargs=2, metavar=("PORT", "TOKEN"), help="run the readers (internal)")
    args = parser.parse_args()
    if args.read:
        read_for_ever(int(args.read[0]), args.read[1])
    sys.exit(0 if soak(args.minutes) else 1)


if __name__ == "__main__":
    main()
