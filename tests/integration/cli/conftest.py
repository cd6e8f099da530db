"""A small host server on TCP and one on a unix socket, and the console script as their client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.commands import Probe, environment, probe_in

BIN = Path(sys.executable).parent
SERVER = Path(__file__).with_name("small_server.py")


@contextmanager
def small_server(address: str, events: Path) -> Iterator[str]:
    """A server at `address`, ready; yields the address it got."""
    command = [sys.executable, str(SERVER), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(EVENTS=str(events))) as server:
        try:
            assert server.stdout is not None
            said, got = server.stdout.readline().split()
            assert said == "ready"
            yield got
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which the servers of a module record their clients' actions."""
    file = tmp_path_factory.mktemp("events") / "events"
    file.touch()
    return file


@pytest.fixture(scope="module")
def tcp(events: Path) -> Iterator[str]:
    """The address of a server on TCP."""
    with small_server("127.0.0.1:0", events) as address:
        yield address


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return probe_in(tmp_path)
