"""A host server over targets in the test's folder, and targets to put there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from copy import copy
from pathlib import Path

import httpx
import pytest
from support.forked import Forked
from support.hosts import SERVERS
from support.waiting import until

ROOT = Path(__file__).parents[3]
SERVER = """
import sys, uvicorn
from probe_agent.targets import TargetDirectory
from probe_agent.server.app import create_app
app = create_app(TargetDirectory((sys.argv[1],)))
limits = {"timeout_keep_alive": 60, "timeout_graceful_shutdown": 1}  # httpx keeps a connection 5 s, as uvicorn does
uvicorn.run(app, uds=sys.argv[2], log_level="warning", access_log=False, **limits)
"""


class Host:
    """Targets in `base`, and a server that answers for them."""

    def __init__(self, base: Path, running: ExitStack) -> None:
        self.base = base
        self.socket = str(base / "host.sock")
        self._running = running
        self.server = running.enter_context(Forked(["-c", SERVER, base, self.socket], server=SERVERS, cwd=ROOT))
        running.callback(self.server.terminate)
        self.http = self.client()
        until(lambda: os.path.exists(self.socket), process=self.server)

    def with_targets_of(self, running: ExitStack) -> Host:
        """The same server; the targets that are started from here on end with `running`."""
        host = copy(self)
        host._running = running
        return host

    def client(self) -> httpx.Client:
        http = httpx.Client(
            base_url="http://localhost", transport=httpx.HTTPTransport(uds=self.socket), trust_env=False, timeout=60
        )
        return self._running.enter_context(http)

    def target(self, *arguments: object, script: str = "counted_rows.py") -> subprocess.Popen[str]:
        """A program of tests/targets with its recorder in `base`, ready."""
        command = [sys.executable, str(ROOT / "tests" / "targets" / script), str(self.base), *map(str, arguments)]
        process = self._start(command)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if arguments and str(arguments[-1]).isdigit():
            assert process.stdout.readline() == "written\n"
        return process

    def query(self, sql: str, **limits: object) -> dict[str, object]:
        """Return the decoded answer, including errors."""
        answer = self.http.post("/v1/query", json={"sql": sql, **limits})
        decoded: dict[str, object] = answer.json()
        return decoded

    def rows(self, sql: str, **limits: object) -> list[list[object]]:
        answer = self.query(sql, **limits)
        assert "rows" in answer, answer
        found = answer["rows"]
        assert isinstance(found, list)
        return found

    def error(self, sql: str, **limits: object) -> dict[str, str]:
        answer = self.query(sql, **limits)
        assert "error" in answer, answer
        found = answer["error"]
        assert isinstance(found, dict)
        return found

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._running.callback(_end, process)
        return process


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate()


def _left_after_removal(base: Path) -> list[Path]:
    for folder in base.glob("probe-*"):
        shutil.rmtree(folder, ignore_errors=True)
    return list(base.glob("probe-*"))


@pytest.fixture(scope="module")
def empty_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with ExitStack() as running:
        yield Host(tmp_path_factory.mktemp("host"), running)


@pytest.fixture
def host(empty_host: Host) -> Iterator[Host]:
    """A host without targets; those that a test starts end with it, and what they have left goes."""
    with ExitStack() as running:
        yield empty_host.with_targets_of(running)
    # The server may be just writing down how a target ended: then its folder is not empty when it is to go.
    until(lambda: not _left_after_removal(empty_host.base))


@pytest.fixture(scope="module")
def full_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host with one target that has recorded 1,000 rows and sleeps; for tests that only read."""
    with ExitStack() as running:
        host = Host(tmp_path_factory.mktemp("host"), running)
        host.target(4096, 1000)
        yield host
