"""What the user names: a process on this host, a host server with or without a rank, or what a target left.

Plain parsing, nothing is contacted. Runs in the CLI; imports nothing but the standard library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from probe_agent.errors import BadRequest

__all__ = [
    "Archive",
    "Endpoint",
    "LocalProcess",
    "Ranks",
    "TcpServer",
    "TlsServer",
    "UnixServer",
    "parse_endpoint",
    "ranges",
]


@dataclass(frozen=True)
class LocalProcess:
    """A process of this host, by its PID."""

    pid: int

    @property
    def selector(self) -> dict[str, str]:
        """The query parameter that picks this target at its host server."""
        return {"pid": str(self.pid)}

    def __str__(self) -> str:
        return str(self.pid)


@dataclass(frozen=True)
class TcpServer:
    """A host server on TCP; `rank` picks one of its targets, or `pid` where ranks are not unique."""

    host: str
    port: int
    rank: int | None = None
    pid: int | None = None

    @property
    def authority(self) -> str:
        """`host:port` as a URL wants it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def selector(self) -> dict[str, str]:
        """The query parameter that picks one target at the server; empty where none is picked."""
        return _selector(self.rank, self.pid)

    def __str__(self) -> str:
        return self.authority + _picked("/", self.rank, self.pid)


@dataclass(frozen=True)
class TlsServer(TcpServer):
    """A host server on TCP that shows a certificate."""

    def __str__(self) -> str:
        return _TLS + super().__str__()


@dataclass(frozen=True)
class UnixServer:
    """A host server on a unix socket; `rank` picks one of its targets, or `pid` where ranks are not unique."""

    path: str
    rank: int | None = None
    pid: int | None = None

    @property
    def selector(self) -> dict[str, str]:
        """The query parameter that picks one target at the server; empty where none is picked."""
        return _selector(self.rank, self.pid)

    def __str__(self) -> str:
        return f"unix:{self.path}" + _picked("//", self.rank, self.pid)


@dataclass(frozen=True)
class Archive:
    """The folder of a target with its rings, or a copy of it: the target need not be there any more."""

    path: str

    @property
    def selector(self) -> dict[str, str]:
        """Nothing: there is one target."""
        return {}

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class Ranks:
    """Ranks of a job that no endpoint leads to: they can be spoken of, and not asked."""

    ranks: tuple[int, ...]
    host: str = ""

    def __str__(self) -> str:
        named = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {ranges(self.ranks)}"
        return named + (f" on {self.host}" if self.host else "")


Endpoint = LocalProcess | TcpServer | UnixServer | Archive

FORMS = (
    "an endpoint is a PID, host:port, host:port/RANK, host:port/pid=PID, [::1]:port, https://host:port,"
    " unix:/path, unix:/path//RANK, or the folder that a target has left in /dev/shm/probe-UID"
)
_TLS = "https://"
#: What makes a folder that of a target.
_IDENTITY = "target.json"
_TCP = re.compile(
    r"(?:http://)?(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<name>[^:/\[\]\s]+)):(?P<port>\d+)(?:/(?:(?P<rank>\d+)|pid=(?P<pid>\d+)))?/?"
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
        return TcpServer(tcp["v6"] or tcp["name"], port, _number(tcp["rank"]), _number(tcp["pid"]))
    if os.path.isdir(text):
        if not os.path.isfile(os.path.join(text, _IDENTITY)):
            raise BadRequest(f"{text} is a folder, but no target's: there is no {_IDENTITY} in it", FORMS)
        return Archive(os.path.realpath(text))
    raise BadRequest(f"{text!r} is not an endpoint{_reason(text)}", FORMS)


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as people write them: 0,4-7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _parse_unix(text: str) -> UnixServer:
    path, slashes, rank = text.removeprefix("unix:").rpartition("//")
    if not slashes or not path:
        path, rank = text.removeprefix("unix:"), ""
    pid = rank.removeprefix("pid=") if rank.startswith("pid=") else None
    if rank and not re.fullmatch("[0-9]+", rank if pid is None else pid):
        raise BadRequest(f"{text}: {rank!r} is not a rank", FORMS)
    if not path.startswith("/"):
        raise BadRequest(f"{text}: the path of a socket must be absolute", FORMS)
    return UnixServer(path, _number(rank) if pid is None else None, _number(pid))


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _selector(rank: int | None, pid: int | None) -> dict[str, str]:
    if pid is not None:
        return {"pid": str(pid)}
    return {} if rank is None else {"rank": str(rank)}


def _picked(slash: str, rank: int | None, pid: int | None) -> str:
    if pid is not None:
        return f"{slash}pid={pid}"
    return "" if rank is None else f"{slash}{rank}"


def _reason(text: str) -> str:
    if text.count(":") > 1 and "[" not in text:
        return f": an IPv6 address needs brackets, as in [{text.rpartition(':')[0]}]:{text.rpartition(':')[2]}"
    if re.fullmatch(r"[\w.-]+\.[\w.-]+|localhost|\[.*\]", text):
        return f": it has no port, as in {text}:8080"
    return ""
