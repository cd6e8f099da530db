"""Free addresses on loopback."""

from __future__ import annotations

import socket
from itertools import count
from random import SystemRandom

__all__ = ["free_address", "free_port"]

#: Below those that the kernel gives to whoever connects: such a one is soon taken again, by anybody.
PORTS = range(10_000, 32_000)
_random = SystemRandom()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that is free now on every address, since torch listens on all, and that nobody gets by chance
    before the caller takes it."""
    family, everywhere = (socket.AF_INET6, "::") if ":" in host else (socket.AF_INET, "")
    for attempt in count():
        port = _random.choice(PORTS)
        with socket.socket(family) as free:
            try:
                free.bind((everywhere, port))
            except OSError:
                assert attempt < 100, f"no port of {PORTS} is free"
                continue
            return port
    raise AssertionError


def free_address() -> str:
    """Return the same as `host:port`."""
    return f"127.0.0.1:{free_port()}"
