"""Free addresses on loopback."""

from __future__ import annotations

import socket

__all__ = ["free_address", "free_port"]


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that is free now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        port: int = free.getsockname()[1]
        return port


def free_address() -> str:
    """Return the same as `host:port`."""
    return f"127.0.0.1:{free_port()}"
