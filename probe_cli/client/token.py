"""Which token goes to a host server on TCP, and whether it should.

Runs in the CLI before the first question: a small file, and for a server on loopback the kernel's word about who
listens there, before and after connecting.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable

from probe_agent.errors import Forbidden
from probe_agent.tokens import given_token, kept_token
from probe_cli.endpoint import TcpServer

from .listeners import users_listening

__all__ = ["authorization", "check_of_listener"]


def authorization() -> dict[str, str]:
    """The header that lets us in at a host server; none where we have no token. Raises BadRequest."""
    token = given_token() or kept_token()
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def check_of_listener(endpoint: TcpServer) -> Callable[[], None] | None:
    """What raises Forbidden where our token must not be sent to `endpoint`; None where it may be in any case.

    The token in our own file is for servers of ours: another user of this host may listen on a loopback port, and
    wait for it. The one in PROBE_TOKEN is for the server that is named.
    """
    addresses = _loopback(endpoint.host)
    if given_token() is not None or not addresses:
        return None

    def check() -> None:
        listening = (users_listening(address, endpoint.port) for address in addresses)
        strangers = set[int]().union(*listening) - {0, os.getuid()}
        if strangers:
            raise Forbidden(
                f"{endpoint}: uid {min(strangers)} listens there, so our token is not sent to it",
                "if that server is meant, put its token into PROBE_TOKEN",
            )

    return check


def _loopback(host: str) -> tuple[str, ...]:
    """The addresses that it means, if these are loopback."""
    if host.lower() == "localhost":
        return "127.0.0.1", "::1"
    try:
        return (host,) if ipaddress.ip_address(host).is_loopback else ()
    except ValueError:
        return ()
