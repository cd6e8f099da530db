"""The door to `probe_agent.server.start`: this user's host server, found, started, described and ended.

Standard library only; nothing of the server itself is loaded into a command.
"""

from __future__ import annotations

from time import time

from probe_agent.errors import ProbeError
from probe_agent.server.location import Running, find
from probe_agent.server.start import ensure_server, stop_server
from probe_cli.text import age

__all__ = ["describe", "ensure_server", "running_server", "stop_server"]


def running_server() -> str:
    """Return one line on the host server of this user; empty where none runs, the reason where it cannot be told."""
    try:
        found = find()
    except ProbeError as error:
        return f"host server: {error.message}"
    return f"host server: {describe(found)}" if found is not None else ""


def describe(server: Running) -> str:
    """Return process, age, address and end of a host server."""
    record = server.record
    parts = [f"pid {server.pid}"]
    if record.started:
        parts.append(f"up {age(max(0.0, time() - record.started))}")
    parts += [f"on {record.listen}"] if record.listen else []
    if record.linger_s:
        parts.append(f"ends after {record.linger_s:g} s without a question")
    return ", ".join(parts)
