"""Hosts made of folders: each has its own targets, and a host server on its own loopback address."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.commands import ROOT, Probe, environment, probe_in
from support.hosts import start_server


class Hosts:
    """Targets in folders below `base`, one folder per host, and their servers."""

    def __init__(self, base: Path, running: ExitStack) -> None:
        self.base = base
        self._running = running

    def serve(self, name: str, address: str = "127.0.0.1", port: int = 0) -> str:
        """Start the host server of the host `name`; return its endpoint."""
        folder = self.base / name
        folder.mkdir(exist_ok=True)
        server, endpoint = start_server(folder, address, port)
        self._running.callback(_end, server)
        return endpoint

    def target(self, name: str, rank: int, world_size: int) -> subprocess.Popen[str]:
        """Start a process with a recorder, as rank `rank`, on the host `name`."""
        folder = self.base / name
        folder.mkdir(exist_ok=True)
        script = ROOT / "tests" / "targets" / "counted_rows.py"
        process = self._start(
            [sys.executable, str(script), str(folder), "64", "10"], RANK=str(rank), WORLD_SIZE=str(world_size)
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.stdout.readline() == "written\n"
        return process

    def _start(self, command: list[str], **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(**more)
        )
        self._running.callback(_end, process)
        return process


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with ExitStack() as running:
        yield Hosts(tmp_path_factory.mktemp("hosts"), running)


@pytest.fixture(scope="module")
def nobody() -> Iterator[str]:
    """An address that refuses connections, and stays free."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return probe_in(tmp_path)


#: How many `tests/targets/spawned_ranks.py` has.
NUM_RANKS = 2


class TwoRanks:
    """The launcher of `tests/targets/spawned_ranks.py`, and the folder through which its ranks get commands."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process

    @property
    def pids(self) -> list[int]:
        return [int((self.folder / f"pid-{rank}").read_text()) for rank in range(NUM_RANKS)]

    @property
    def targets(self) -> list[str]:
        """Return them as arguments of `probe`."""
        return [word for pid in self.pids for word in ("-t", str(pid))]

    def trains(self) -> bool:
        assert self.process.poll() is None
        return all((self.folder / f"step-{rank}").exists() for rank in range(NUM_RANKS))
