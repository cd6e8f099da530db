"""Attacks on a host server, each with what comes of it. docs/security.md lists them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PROBE = str(Path(sys.executable).with_name("probe"))
NOBODY = 65534


@dataclass
class Served:
    """A host server that runs, and what it has said."""

    process: subprocess.Popen[str]
    unix: str
    said: str


@contextmanager
def serving(folder: Path, *options: str, **environ: str) -> Iterator[Served]:
    """`probe serve` with its socket in `folder`, ready."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    path = str(folder / "host.sock")
    with subprocess.Popen(
        [PROBE, "serve", "--unix", path, *options], stderr=subprocess.PIPE, text=True, env=plain | environ
    ) as process:
        try:
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said += line
                if f"unix:{path}" in line:
                    break
            assert process.poll() is None, said
            yield Served(process, path, said)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that every user of this host can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


ASKS = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(30)
    connection.connect(sys.argv[1])
    connection.sendall(b"GET /v1/targets HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    print(connection.makefile().read())
"""


def ask_as(uid: int, path: str) -> subprocess.CompletedProcess[str]:
    """What a process of another user gets from the unix socket."""
    return subprocess.run([sys.executable, "-c", ASKS, path, str(uid)], capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_the_unix_socket_is_closed_to_other_users_twice(open_folder: Path) -> None:
    with serving(open_folder) as server:
        by_its_mode = ask_as(NOBODY, server.unix)
        os.chmod(server.unix, 0o666)  # as a careless user might
        by_the_kernels_word = ask_as(NOBODY, server.unix)
        own = ask_as(0, server.unix)

    assert "PermissionError" in by_its_mode.stderr
    assert by_the_kernels_word.stdout.startswith("HTTP/1.1 403"), by_the_kernels_word.stderr
    error = json.loads(by_the_kernels_word.stdout.splitlines()[-1])["error"]
    assert error["kind"] == "Forbidden"
    assert f"not to uid {NOBODY}" in error["message"]
    assert own.stdout.startswith("HTTP/1.1 200")
