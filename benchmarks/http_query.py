"""A plain HTTP client of a host server: one kept connection, JSON both ways, standard library only.

Runs in the benchmark's process.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter, sleep
from typing import Any

from .agent import PROBE
from .process import plain_environment

__all__ = ["UnixConnection", "ask", "free_port", "host_server", "times", "wait_until_connected"]

Connection = http.client.HTTPConnection


class UnixConnection(Connection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


def post(connection: Connection, path: str, body: object) -> Any:  # JSON from outside
    """Return the answer of `path` to `body`. Raises RuntimeError if it is an error."""
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    data = response.read()
    if response.status != 200:
        raise RuntimeError(f"{path} answered {response.status} to {body}: {data.decode('utf-8', 'replace')}")
    return json.loads(data)


def ask(connection: Connection, pid: int, sql: str) -> list[list[Any]]:
    """Return the rows that `POST /v1/query` of Probe's host server answers."""
    rows: list[list[Any]] = post(connection, f"/v1/query?pid={pid}", {"sql": sql})["rows"]
    return rows


def times(connection: Connection, act: Callable[[], object], num: int) -> list[float]:
    """Return the seconds of each of `num` requests on a fresh connection, after one that is not counted."""
    connection.close()  # the server has closed it if the last request is long ago
    act()
    seen = []
    for _ in range(num):
        began = perf_counter()
        act()
        seen.append(perf_counter() - began)
    return seen


@contextmanager
def host_server() -> Iterator[dict[str, Connection]]:
    """Run `probe serve` on its own socket and port, with a connection to each."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "host.sock")
        command = [PROBE, "serve", "--unix", path, "--listen", f"127.0.0.1:{port}", "--insecure"]
        server = subprocess.Popen(command, env=plain_environment(), stderr=subprocess.DEVNULL)
        try:
            connections = {"unix socket": UnixConnection(path), "TCP": Connection("127.0.0.1", port)}
            for connection in connections.values():
                wait_until_connected(connection)
            yield connections
        finally:
            server.terminate()
            server.wait()


def free_port() -> int:
    """Return a free TCP port on loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def wait_until_connected(connection: Connection) -> None:
    """Connect once the server listens. Raises OSError after 20 s."""
    deadline = monotonic() + 20
    while True:
        try:
            connection.connect()
            return
        except OSError:
            if monotonic() > deadline:
                raise
            sleep(0.05)
