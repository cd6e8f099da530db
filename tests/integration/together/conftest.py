"""Jobs of several ranks on gloo, as if on several hosts, each with its own host server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep

import pytest
from support.commands import Probe, environment, probe_in
from support.hosts import start_server
from support.targets import Ranks, forked_ranks, target
from support.waiting import until

pytest.importorskip("torch")

START_S = 90.0


class Job:
    """A running job, and the endpoints of its hosts after `serve`."""

    def __init__(self, folder: Path, process: Ranks, num_ranks: int, running: ExitStack) -> None:
        self.folder = folder
        self.process = process
        self.num_ranks = num_ranks
        self.running = running
        self.servers: list[subprocess.Popen[str]] = []
        self.endpoints: list[str] = []

    @property
    def targets(self) -> list[str]:
        """Return them as arguments of `probe`."""
        return [word for endpoint in self.endpoints for word in ("-t", endpoint)]

    def losses(self, rank: int) -> list[str]:
        path = self.folder / f"losses-{rank}"
        return path.read_text().split() if path.exists() else []

    def until(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        until(condition, timeout_s, (self.folder / "output").read_text, self.process)

    def goes_on(self) -> bool:
        """Return whether all ranks take more steps."""
        seen = [len(self.losses(rank)) for rank in range(self.num_ranks)]
        self.until(lambda: all(len(self.losses(rank)) > seen[rank] + 3 for rank in range(self.num_ranks)))
        return True

    def stand(self) -> None:
        """Have rank 0 stand still, and wait until no rank takes a step any more."""
        (self.folder / "stand").touch()
        before: list[int] = []
        while before != (before := [len(self.losses(rank)) for rank in range(self.num_ranks)]):
            sleep(0.5)

    def pid(self, rank: int) -> int:
        """Return the process of this rank."""
        known = [json.loads(path.read_text()) for path in self.folder.glob("host*/*/*/target.json")]
        return next(int(one["host_pid"]) for one in known if one["rank"] == rank)

    def wait_for_recorders(self) -> None:
        self.until(lambda: len(list(self.folder.glob("host*/*/*/target.json"))) == self.num_ranks, START_S)
        self.goes_on()

    def serve(self, host: int) -> None:
        """Start the host server of one host; if it had one before, under a new address."""
        server, endpoint = start_server(self.folder / f"host{host}")
        self.running.callback(_end, server)
        self.servers[host:] = [server, *self.servers[host + 1 :]]
        self.endpoints[host:] = [endpoint, *self.endpoints[host + 1 :]]

    def end(self) -> None:
        (self.folder / "stop").touch()
        self.process.wait(60)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@contextmanager
def training(folder: Path, num_ranks: int, num_hosts: int, optimizer: str, steps: int = 0) -> Iterator[Job]:
    """A job with `num_ranks` ranks; without a recorder for 0 hosts."""
    program = target("together_training.py", folder, optimizer, num_hosts, *([steps] if steps else []))
    with ExitStack() as servers, forked_ranks(num_ranks, program, folder, environment()) as process:
        job = Job(folder, process, num_ranks, servers)
        try:
            if num_hosts:
                job.wait_for_recorders()
            for host in range(num_hosts):
                job.serve(host)
            yield job
        finally:
            (folder / "stand").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two ranks on two hosts; each numbers its steps differently."""
    with training(tmp_path_factory.mktemp("job"), 2, 2, "sgd") as job:
        yield job


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Four ranks on two hosts."""
    with training(tmp_path_factory.mktemp("four"), 4, 2, "adam") as job:
        yield job


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return probe_in(tmp_path)
