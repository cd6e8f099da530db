"""What the user names: a process on this host, a host server with or without a rank, or what a target left.

Plain parsing, nothing is contacted. Runs in the CLI; imports nothing but the standard library.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from probe_agent.errors import BadRequest

__all__ = ["Archive", "Endpoint", "LocalProcess", "TcpServer", "TlsServer", "UnixServer", "parse_endpoint"]


@dataclass(frozen=True)
class LocalProcess:
    """A process of this host, by its PID."""

    pid: int

    def __str__(self) -> str:
        return str(self.pid)


@dataclass(frozen=True)
class TcpServer:
    """A host server on TCP; `rank` picks one of its targets."""

    host: str
    port: int
    rank: int | None = None

    @property
    def authority(self) -> str:
        """`host:port` as a URL wants it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.authority if self.rank is None else f"{self.authority}/{self.rank}"


@dataclass(frozen=True)
class TlsServer(TcpServer):
    """A host server on TCP that shows a certificate."""

    def __str__(self) -> str:
        return _TLS + super().__str__()


@dataclass(frozen=True)
class UnixServer:
    """A host server on a unix socket; `rank` picks one of its targets."""

    path: str
    rank: int | None = None

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.rank is None else f"unix:{self.path}//{self.rank}"


@dataclass(frozen=True)
class Archive:
    """The folder of a target with its rings, or a copy of it: the target need not be there any more."""

    path: str

    def __str__(self) -> str:
        return self.path


Endpoint = LocalProcess | TcpServer | UnixServer | Archive

FORMS = (
    "an endpoint is a PID, host:port, host:port/RANK, [::1]:port, unix:/path, unix:/path//RANK, or the folder that a"
    " target has left in /dev/shm/probe-UID"
)
_TLS = "https://"
#: What makes a folder that of a target.
_IDENTITY = "target.json"
_TCP = re.compile(
    r"(?:http://)?(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<name>[^:/\[\]\s]+)):(?P<port>\d+)(?:/(?P<rank>\d+))?/?"
)


def parse_endpoint(text: str) -> Endpoint:
    """What `text` names, or BadRequest that says what is wrong with it."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return LocalProcess(int(text))
    if text.startswith("unix:"):
        return _parse_unix(text)
    if text.startswith(_TLS) and isinstance(plain := parse_endpoint(text.removeprefix(_TLS)), TcpServer):
        return TlsServer(**vars(plain))
    if tcp := _TCP.fullmatch(text):
        port = int(tcp["port"])
        if not 0 < port < 65536:
            raise BadRequest(f"{text}: {port} is no TCP port", "ports are 1 to 65535")
        return TcpServer(tcp["v6"] or tcp["name"], port, None if tcp["rank"] is None else int(tcp["rank"]))
    if os.path.isdir(text):
        if not os.path.isfile(os.path.join(text, _IDENTITY)):
            raise BadRequest(f"{text} is a folder, but no target's: there is no {_IDENTITY} in it", FORMS)
        return Archive(os.path.realpath(text))
    raise BadRequest(f"{text!r} is not an endpoint{_reason(text)}", FORMS)


def _parse_unix(text: str) -> UnixServer:
    path, slashes, rank = text.removeprefix("unix:").rpartition("//")
    if not slashes or not path:
        path, rank = text.removeprefix("unix:"), ""
    if rank and not (rank.isascii() and rank.isdigit()):
        raise BadRequest(f"{text}: {rank!r} is not a rank", FORMS)
    if not path.startswith("/"):
        raise BadRequest(f"{text}: the path of a socket must be absolute", FORMS)
    return UnixServer(path, int(rank) if rank else None)


def _reason(text: str) -> str:
    if text.count(":") > 1 and "[" not in text:
        return f": an IPv6 address needs brackets, as in [{text.rpartition(':')[0]}]:{text.rpartition(':')[2]}"
    if re.fullmatch(r"[\w.-]+\.[\w.-]+|localhost|\[.*\]", text):
        return f": it has no port, as in {text}:8080"
    return ""
