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
    if given_token() is not None or not _is_loopback(endpoint.host):
        return None

    def check() -> None:
        strangers = users_listening(endpoint.port) - {0, os.getuid()}
        if strangers:
            raise Forbidden(
                f"{endpoint}: uid {min(strangers)} listens there, so our token is not sent to it",
                "if that server is meant, put its token into PROBE_TOKEN",
            )

    return check


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
