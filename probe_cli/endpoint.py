"""Endpoints: a process on this host, a host server with or without a rank, a target's folder, or a report.

Parsing only, nothing is contacted. Runs in the CLI.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from probe_agent.errors import BadRequest

from .report_file import is_report
from .text import ranks_text

__all__ = [
    "Archive",
    "Endpoint",
    "LocalProcess",
    "MissingRanks",
    "Report",
    "TcpServer",
    "ThisHost",
    "TlsServer",
    "UnixServer",
    "of_job",
    "parse_endpoint",
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
    """A host server on TCP; `rank` picks one of its targets (of the job whose name begins with `job`), or `pid`."""

    host: str
    port: int
    rank: int | None = None
    pid: int | None = None
    job: str | None = None

    @property
    def authority(self) -> str:
        """`host:port` as a URL wants it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def selector(self) -> dict[str, str]:
        """The query parameter that picks one target at the server; empty where none is picked."""
        return _selector(self.job, self.rank, self.pid)

    def __str__(self) -> str:
        return self.authority + _picked("/", self.job, self.rank, self.pid)


@dataclass(frozen=True)
class TlsServer(TcpServer):
    """A host server on TCP that shows a certificate."""

    def __str__(self) -> str:
        return _TLS + super().__str__()


@dataclass(frozen=True)
class UnixServer:
    """A host server on a unix socket; `rank`, `pid` and `job` pick among its targets, as on TCP."""

    path: str
    rank: int | None = None
    pid: int | None = None
    job: str | None = None

    @property
    def selector(self) -> dict[str, str]:
        """The query parameter that picks one target at the server; empty where none is picked."""
        return _selector(self.job, self.rank, self.pid)

    def __str__(self) -> str:
        return f"unix:{self.path}" + _picked("//", self.job, self.rank, self.pid)


@dataclass(frozen=True)
class ThisHost(UnixServer):
    """The host server of this host and user, or what stands for it while none runs."""

    path: str = ""

    def __str__(self) -> str:
        return "this host" + ("" if self.job is None else f" (job {self.job})")


@dataclass(frozen=True)
class Archive:
    """The folder of a target with its rings, or a copy of it: the target need not be there any more."""

    path: str

    @property
    def selector(self) -> dict[str, str]:
        """The query parameter that names the folder."""
        return {"folder": self.path}

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class Report:
    """A file of `probe … report`; `pid` picks one of the targets in it."""

    path: str
    pid: int | None = None

    @property
    def selector(self) -> dict[str, str]:
        """The query parameter that picks this target; empty where none is picked."""
        return {} if self.pid is None else {"pid": str(self.pid)}

    def __str__(self) -> str:
        return self.path + ("" if self.pid is None else f" (pid {self.pid})")


@dataclass(frozen=True)
class MissingRanks:
    """Ranks of a job that no endpoint leads to: they can be named, and not asked."""

    ranks: tuple[int, ...]
    host: str = ""

    def __str__(self) -> str:
        named = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {ranks_text(self.ranks)}"
        return named + (f" on {self.host}" if self.host else "")


Endpoint = LocalProcess | TcpServer | UnixServer | Archive | Report

FORMS = (
    "use a PID, host:port, host:port/RANK, host:port/JOB, host:port/JOB/RANK, host:port/pid=PID, [::1]:port,"
    " https://host:port, unix:/path, unix:/path//RANK, the folder of a target in /dev/shm/probe-UID, or the file of a"
    " report"
)
_TLS = "https://"
#: What makes a folder that of a target.
_IDENTITY = "target.json"
_TCP = re.compile(
    r"(?:http://)?(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<name>[^:/\[\]\s]+)):(?P<port>\d+)(?:/(?P<picked>[^/].*?))?/?"
)
#: What may follow a server. A job's name has no digits.
_PICKED = re.compile(r"pid=(?P<pid>\d+)|(?:(?P<job>[a-z]+)(?:/|$))?(?P<rank>\d+)?")


def parse_endpoint(text: str) -> Endpoint:
    """Return the endpoint that `text` names. Raises BadRequest."""
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
            raise BadRequest(f"{text}: invalid port {port}", "use a port from 1 to 65535")
        return TcpServer(tcp["v6"] or tcp["name"], port, *_picks(tcp["picked"] or "", text))
    if os.path.isdir(text):
        if not os.path.isfile(os.path.join(text, _IDENTITY)):
            raise BadRequest(f"{text} is not the folder of a target: there is no {_IDENTITY} in it", FORMS)
        return Archive(os.path.realpath(text))
    if is_report(text):
        return Report(text)
    raise BadRequest(f"{text!r} is not an endpoint{_reason(text)}", FORMS)


def of_job(endpoint: Endpoint, job: str) -> Endpoint:
    """The targets of a host that are of the job whose name begins with `job`. Raises BadRequest for other endpoints."""
    if isinstance(endpoint, TcpServer | UnixServer) and endpoint.pid is None and endpoint.job in (None, job):
        return replace(endpoint, job=job)
    raise BadRequest(
        f"--job {job} picks a job of a host, and {endpoint} is a single target or job already", "leave out --job"
    )


def _parse_unix(text: str) -> UnixServer:
    path, slashes, picked = text.removeprefix("unix:").rpartition("//")
    if not slashes or not path:
        path, picked = text.removeprefix("unix:"), ""
    if not path.startswith("/"):
        raise BadRequest(f"{text}: the path of the socket is not absolute", FORMS)
    return UnixServer(path, *_picks(picked, text))


def _picks(picked: str, text: str) -> tuple[int | None, int | None, str | None]:
    """Rank, PID and job in what follows a server: RANK, JOB, JOB/RANK or pid=PID."""
    found = _PICKED.fullmatch(picked)
    if found is None:
        raise BadRequest(f"{text}: {picked!r} is not a rank, a job or both", FORMS)
    rank, pid = (int(found[name]) if found[name] else None for name in ("rank", "pid"))
    return rank, pid, found["job"]


def _selector(job: str | None, rank: int | None, pid: int | None) -> dict[str, str]:
    named = {"pid": pid} if pid is not None else {"job": job, "rank": rank}
    return {name: str(value) for name, value in named.items() if value is not None}


def _picked(slash: str, job: str | None, rank: int | None, pid: int | None) -> str:
    if pid is not None:
        return f"{slash}pid={pid}"
    named = [str(one) for one in (job, rank) if one is not None]
    return slash + "/".join(named) if named else ""


def _reason(text: str) -> str:
    if text.count(":") > 1 and "[" not in text:
        return f": an IPv6 address needs brackets, as in [{text.rpartition(':')[0]}]:{text.rpartition(':')[2]}"
    if re.fullmatch(r"[\w.-]+\.[\w.-]+|localhost|\[.*\]", text):
        return f": it has no port, as in {text}:8080"
    if os.path.isfile(text):
        return ": the file is not a report of Probe"
    return ": there is no such file or folder" if "/" in text else ""
