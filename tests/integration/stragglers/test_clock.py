"""The clock of a host, requested over a real socket from a server whose clock is wrong by a known time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from probe_cli.client import open_client
from probe_cli.cluster.compare.clocks import host_clock
from probe_cli.cluster.compare.facts import Clock
from probe_cli.endpoint import TcpServer

SERVER = """
import socket, sys, uvicorn
from probe_agent.targets import TargetDirectory
from probe_agent.server.app import create_app
from probe_agent.server.routes import host
right = host.time
host.time = lambda: right() + float(sys.argv[2])
if sys.argv[2] == "nan":
    host.read.routes[:] = [route for route in host.read.routes if route.path != '/v1/clock']
app = create_app(TargetDirectory((sys.argv[1],)))
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
uvicorn.Server(config).run(sockets=[listener])
"""


@contextmanager
def server(folder: Path, ahead: float) -> Iterator[TcpServer]:
    command = [sys.executable, "-c", SERVER, str(folder), str(ahead)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield TcpServer("127.0.0.1", int(process.stdout.readline()))
        finally:
            process.terminate()


def asked(endpoint: TcpServer) -> Clock | None:
    async def ask() -> Clock | None:
        async with open_client(endpoint) as client:
            return await host_clock(client)

    return asyncio.run(ask())


@pytest.mark.parametrize("ahead", [7.5, -7200.0])
def test_the_offset_is_known_to_within_the_uncertainty(ahead: float, tmp_path: Path) -> None:
    with server(tmp_path, ahead) as endpoint:
        clock = asked(endpoint)

    assert clock is not None
    assert abs(clock.offset - ahead) <= clock.uncertainty + 1e-4  # the float of a time of day has 0.2 µs
    assert clock.uncertainty < 5.0
    assert clock.num_trips >= 6


def test_an_older_server_that_has_no_clock_is_no_failure(tmp_path: Path) -> None:
    with server(tmp_path, float("nan")) as endpoint:
        assert asked(endpoint) is None
