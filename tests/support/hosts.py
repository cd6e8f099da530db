"""Host servers: over the targets of one folder, as if it were a host, and those that a job has started."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from .commands import ROOT, environment
from .forked import Forked, ForkServer

__all__ = ["SERVERS", "start_server", "started_servers"]

#: With the modules of a host server, which take 0.6 s of CPU time to import.
SERVERS = ForkServer("probe_cli.main", "probe_agent.server.serve", "uvicorn")

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


def start_server(folder: Path, address: str = "127.0.0.1", port: int = 0) -> tuple[subprocess.Popen[Any], str]:
    """Start a host server over the targets in `folder`; return it and its endpoint."""
    command = ["-c", _SERVER, folder, address, port]
    server = Forked(command, server=SERVERS, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment())
    assert server.stdout is not None
    return server, f"{address}:{int(server.stdout.readline())}"


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
