"""Which token goes to a host server on TCP, and whether it should.

Runs in the CLI before the first question: a small file, and for a server on loopback the kernel's list of listeners.
"""

from __future__ import annotations

import ipaddress
import os
from functools import lru_cache
from time import monotonic

from probe_agent.errors import Forbidden
from probe_agent.tokens import given_token, kept_token
from probe_cli.endpoint import TcpServer

__all__ = ["authorization"]

_LISTEN = "0A"


def authorization(endpoint: TcpServer) -> dict[str, str]:
    """The header that lets us in at `endpoint`; none where we have no token. Raises Forbidden, or BadRequest.

    The token in our own file is for servers of ours: another user of this host may listen on a loopback port, and
    wait for it.
    """
    token = given_token()
    if token is None and (token := kept_token()) is not None and _is_loopback(endpoint.host):
        users = {uid for port, uid in _listeners(int(monotonic())) if port == endpoint.port}
        strangers = users - {0, os.getuid()}
        if strangers:
            raise Forbidden(
                f"{endpoint}: uid {min(strangers)} listens there, so our token is not sent to it",
                "if that server is meant, put its token into PROBE_TOKEN",
            )
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@lru_cache(maxsize=1)
def _listeners(_second: int) -> tuple[tuple[int, int], ...]:
    """Port and user of all sockets of this host that listen on loopback or on every address; read once a second."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                next(file)
                lines = [line.split() for line in file]
        except (OSError, StopIteration):
            continue  # no such family here
        for line in lines:
            address, _, number = line[1].partition(":")
            if line[3] == _LISTEN and _is_reached_from_here(address):
                found.append((int(number, 16), int(line[7])))
    return tuple(found)


def _is_reached_from_here(address: str) -> bool:
    """Whether an address as the kernel writes it, in words with the last byte first, is loopback or any."""
    words = [bytes.fromhex(address[at : at + 8]) for at in range(0, len(address), 8)]
    found = ipaddress.ip_address(b"".join(word[::-1] for word in words))
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_unspecified
