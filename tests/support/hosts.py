"""Host servers: over the targets of one folder, as if it were a host, and those that a job has started."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["server_command", "started_servers"]

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


def server_command(folder: Path, address: str = "127.0.0.1", port: int = 0) -> list[str]:
    """A host server over the targets in `folder`; its first line says its port."""
    return [sys.executable, "-c", _SERVER, str(folder), address, str(port)]


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
