"""Who asks a host server, and whether they may ask at all.

On the unix socket the kernel says who is at the other end. Runs on the server's event loop, before anything of the
request but its head is read: some microseconds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from starlette.types import Scope

from probe_agent.errors import Forbidden

__all__ = ["UNIX_PEER", "Access", "Caller"]

#: Where the server leaves the process id and the user id of a unix socket's peer, in `scope["state"]`.
UNIX_PEER = "unix_peer"


@dataclass(frozen=True)
class Caller:
    """Somebody who may ask. `who` is for people: an address, or a user and a process."""

    who: str
    #: Whether they are on this host, and this user or root.
    is_owner: bool


class Access:
    """Decides who may ask."""

    def admit(self, scope: Scope) -> Caller:
        """Who has sent the request in `scope`. Raises Forbidden."""
        if peer := scope.get("state", {}).get(UNIX_PEER):
            return _unix_caller(*peer)
        host, port = scope.get("client") or ("an unknown address", 0)
        return Caller(f"{host}:{port}", is_owner=False)


class OwnProcess(Access):
    """Of an app without a server: nobody but this very process can ask it."""

    def admit(self, scope: Scope) -> Caller:
        return Caller(f"uid {os.geteuid()} pid {os.getpid()}", is_owner=True)


def _unix_caller(pid: int, uid: int) -> Caller:
    if uid not in (0, os.geteuid()):
        raise Forbidden(
            f"this host server belongs to uid {os.geteuid()}, not to uid {uid}",
            "run a host server of your own: probe serve",
        )
    return Caller(f"uid {uid} pid {pid}", is_owner=True)
