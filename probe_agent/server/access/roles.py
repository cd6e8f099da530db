"""Who asks a host server, whether they may ask at all, and what.

On the unix socket the kernel identifies the peer; over TCP a token does. Runs on the server's event loop,
before anything of the request but its head is read: some microseconds.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from starlette.types import Scope

from probe_agent.errors import Forbidden, Unauthorized
from probe_agent.tokens import Role, Tokens

from .quota import Quota
from .sessions import Sessions

__all__ = ["UNIX_PEER", "Access", "Caller", "OwnProcess"]

#: Where the server leaves the process id and the user id of a unix socket's peer, in `scope["state"]`.
UNIX_PEER = "unix_peer"


@dataclass(frozen=True)
class Caller:
    """Somebody who may ask. `who` is for people: an address, or a user and a process."""

    who: str
    role: Role
    #: Whether a token let them in, which no page in a browser has.
    has_token: bool = False
    #: Whether they are on this host, and this user or root.
    is_owner: bool = False
    #: What their queries may take; None where that is for them to say.
    quota: Quota | None = None
    #: Whether a session of the dashboard let them in.
    has_session: bool = False


class Access:
    """Decides who may ask, and how much: with a token, or in a session of the dashboard. With `insecure`, everybody
    whom TCP brings may do everything."""

    def __init__(
        self,
        tokens: Tokens | None,
        readers: Quota = Quota(),  # noqa: B008  # it is frozen
        *,
        insecure: bool = False,
    ) -> None:
        self.sessions = Sessions()
        self.is_insecure = insecure
        self._readers = readers
        self._roles: list[tuple[bytes, Role]] = []
        if tokens is not None:
            self._roles.append((_digest(tokens.control), "control"))
        if tokens is not None and tokens.read is not None:
            self._roles.append((_digest(tokens.read), "read"))

    def admit(self, scope: Scope) -> Caller:
        """Who has sent the request in `scope`. Raises Forbidden."""
        if peer := scope.get("state", {}).get(UNIX_PEER):
            return _unix_caller(*peer)
        host, port = scope.get("client") or ("an unknown address", 0)
        who = f"{host}:{port}"
        if self.is_insecure:
            return Caller(who, "control")
        headers = dict(scope["headers"])
        session = None if b"authorization" in headers else self.sessions.find(headers, scope["method"])
        role = self._role(headers) if session is None else session.role
        quota = self._readers if role == "read" else None
        return Caller(who, role, has_token=True, quota=quota, has_session=session is not None)

    def stranger(self, scope: Scope) -> Caller:
        """Return whoever has sent the request in `scope` to an endpoint that is open."""
        host, port = scope.get("client") or ("an unknown address", 0)
        return Caller(f"{host}:{port}", "open", has_token=not self.is_insecure)

    def _role(self, headers: Mapping[bytes, bytes]) -> Role:
        sent = headers.get(b"authorization", b"").decode("latin-1")
        scheme, _, token = sent.partition(" ")
        if not sent or scheme.lower() != "bearer":
            raise Unauthorized(
                "this host server wants a token, and none came with the question",
                "put it into PROBE_TOKEN, or name its file in PROBE_TOKEN_FILE; `probe serve` says which file that is",
            )
        # Digests are equally long, and each is compared to its end: how long it takes says nothing of the token.
        digest = _digest(token.strip())
        fitting = [role for known, role in self._roles if hmac.compare_digest(known, digest)]
        if not fitting:
            raise Unauthorized(
                "the token that came with the question is not one of this host server's",
                "set PROBE_TOKEN, or PROBE_TOKEN_FILE, to the token that `probe serve` names",
            )
        return fitting[0]


class OwnProcess(Access):
    """Of an app without a server: nobody but this very process can ask it."""

    def __init__(self) -> None:
        super().__init__(None)

    def admit(self, scope: Scope) -> Caller:
        return Caller(f"uid {os.geteuid()} pid {os.getpid()}", "control", is_owner=True)


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()


def _unix_caller(pid: int, uid: int) -> Caller:
    if uid not in (0, os.geteuid()):
        raise Forbidden(
            f"this host server belongs to uid {os.geteuid()}, not to uid {uid}",
            "run a host server of your own: probe serve",
        )
    return Caller(f"uid {uid} pid {pid}", "control", is_owner=True)
