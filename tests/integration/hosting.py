"""What tests with several hosts share: a host server over the targets of one folder, and the command to ask it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["ROOT", "Probe", "environment", "probe_in", "server_command", "started_servers"]

ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
_SERVER = """
import sys, socket, uvicorn
from probe_agent.targets import TargetDirectory
from probe_agent.server.app import create_app
listener = socket.create_server((sys.argv[2], int(sys.argv[3])))
print(listener.getsockname()[1], flush=True)
app = create_app(TargetDirectory((sys.argv[1],)))
config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
uvicorn.Server(config).run(sockets=[listener])
"""

Probe = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(**more: str) -> dict[str, str]:
    """Ours, with this environment's `probe` first on the path and nothing of Probe set."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    return plain | {"PATH": f"{_BIN}:{plain['PATH']}"} | more


def server_command(folder: Path, address: str = "127.0.0.1", port: int = 0) -> list[str]:
    """A host server over the targets in `folder`; its first line says its port."""
    return [sys.executable, "-c", _SERVER, str(folder), address, str(port)]


def probe_in(state: Path) -> Probe:
    """Runs `probe` to its end, with what it writes down in `state`."""

    def run(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["probe", *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            env=environment(XDG_STATE_HOME=str(state), **more),
        )

    return run


def started_servers(address: str) -> list[int]:
    """Host servers that a job has started for this address."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue  # gone
        if "--linger" in words and address.removeprefix("unix:") in words:
            found.append(int(folder.name))
    return found
