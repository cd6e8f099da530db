"""`-t @hosts.txt`: one endpoint or host list a line; what follows a # is a remark."""

from __future__ import annotations

from probe_agent.errors import BadRequest

__all__ = ["endpoints"]


def endpoints(path: str) -> list[str]:
    """The lines that say something. Raises BadRequest."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as failure:
        raise BadRequest(f"cannot read {path!r}: {failure}", "-t @FILE names a text file") from failure
    found = [line for line in lines if line]
    if not found:
        raise BadRequest(f"{path} names no endpoint", "write one a line, such as node1:8080")
    return found
