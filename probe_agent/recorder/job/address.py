"""Address of this target's host server for other hosts, as far as this host knows it.

A host server writes its addresses to a file in the user's folder and holds a lock on it for as long as it lives;
PROBE_LISTEN has the address of a server that is not running yet. Runs on a thread of the recorder; reads a few files.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket

__all__ = ["SERVER_FILE", "announced", "listening", "reachable"]

#: File of a host server in the user's folder, one address per line.
SERVER_FILE = re.compile(r"server-\d+\.txt")
_ADDRESS = re.compile(r"(?P<scheme>https?://)?(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:/\[\]]*)):(?P<port>\d+)/?")
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")
_WILDCARD = ("", "*", "0.0.0.0", "::")


def listening(user_folder: str) -> list[str]:
    """Return the TCP addresses of this user's running host servers, the most widely reachable one first."""
    found = announced(user_folder)
    planned = os.environ.get("PROBE_LISTEN", "")
    if not found and planned and not planned.startswith("unix:"):
        found = ["https://" * bool(os.environ.get("PROBE_TLS_CERT")) + planned.rpartition("://")[2]]
    return sorted((address for address in found if _ADDRESS.fullmatch(address)), key=_nearness)


def announced(user_folder: str) -> list[str]:
    """Return the TCP addresses that this user's running host servers have written down."""
    names = filter(SERVER_FILE.fullmatch, os.listdir(user_folder))
    return [address for name in names for address in _said_by_the_living(os.path.join(user_folder, name))]


def reachable(addresses: list[str], towards_store: str) -> tuple[str | None, str]:
    """Return the address to publish, of those from `listening`, and a note about it.

    `towards_store` is this host's own address on its connection to the job's store, which every rank can reach.
    """
    if not addresses:
        return None, "no host server listens on TCP there; start one with PROBE_LISTEN or `probe serve --listen`"
    parts = _ADDRESS.fullmatch(addresses[0])
    assert parts is not None, "listening() returns nothing else"
    name, port = parts["v6"] or parts["name"] or "", parts["port"]
    note = ""
    if name in _WILDCARD:
        name, way = towards_store, "the one towards the job's store"
        if parts["scheme"] == "https://":
            name, way = socket.gethostname(), "the name of the host, which certificates contain"
        elif _LOOPBACK.fullmatch(towards_store):
            name, way = socket.gethostname(), "the name of the host, since the job's store is on it"
        note = f"the host server listens on every interface; this is {way}"
    elif _LOOPBACK.fullmatch(name):
        note = "the host server listens on loopback, so only its own host reaches it"
    return f"{parts['scheme'] or ''}{f'[{name}]' if ':' in name else name}:{port}", note


def _nearness(address: str) -> int:
    parts = _ADDRESS.fullmatch(address)
    name = (parts["v6"] or parts["name"] or "") if parts else ""
    return 2 if _LOOPBACK.fullmatch(name) else 1 if name in _WILDCARD else 0


def _said_by_the_living(path: str) -> list[str]:
    try:
        with open(path, errors="replace") as file:
            if os.fstat(file.fileno()).st_uid not in (0, os.getuid()):
                return []
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(4096).split()
    except OSError:
        return []  # removed meanwhile
    return []  # not locked: its server was killed
