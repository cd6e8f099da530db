"""Who listens on the loopback ports of this host, as the kernel lists it.

Runs in the CLI on its event loop: a millisecond for a thousand sockets. Those who want to know at the same time share
one look, which is taken after each of them has asked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from weakref import WeakKeyDictionary

__all__ = ["users_listening"]

Look = Mapping[int, frozenset[int]]

#: Address and port, state (0A: it listens), two columns of numbers, the user.
_LISTENER = re.compile(rb"^ *\d+: ([0-9A-F]+):([0-9A-F]{4}) \S+ 0A \S+ \S+ \S+ +(\d+) ", re.MULTILINE)
_coming: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Look]] = WeakKeyDictionary()


async def users_listening(port: int) -> frozenset[int]:
    """Whose sockets listen on this port on loopback, or on every address, now."""
    loop = asyncio.get_running_loop()
    if loop not in _coming:
        _coming[loop] = loop.create_task(_look(loop))
    return (await asyncio.shield(_coming[loop])).get(port, frozenset())


async def _look(loop: asyncio.AbstractEventLoop) -> Look:
    del _coming[loop]  # whoever asks from now on wants a later one
    found: dict[int, frozenset[int]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, "rb") as file:
                text = file.read()
        except OSError:
            continue  # no such family here
        for address, number, user in _LISTENER.findall(text):
            if _is_reached_from_here(address.decode()):
                port = int(number, 16)
                found[port] = found.get(port, frozenset()) | {int(user)}
    return found


@lru_cache(maxsize=1024)
def _is_reached_from_here(address: str) -> bool:
    """Whether an address as the kernel writes it, in words with the last byte first, is loopback or any."""
    words = [bytes.fromhex(address[at : at + 8]) for at in range(0, len(address), 8)]
    found = ipaddress.ip_address(b"".join(word[::-1] for word in words))
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_unspecified
