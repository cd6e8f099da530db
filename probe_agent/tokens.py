"""The two tokens that open a host server on TCP: one for everything, one for reading.

Made at the first start of a server and kept in two files that their user alone can read, FILE and FILE.read. Where a
user's home is on all hosts of a cluster, so are they, and the command line finds the token by itself.

Runs in the host server when it starts, and in the command line before it asks over TCP: two small files.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .errors import BadRequest

__all__ = ["TOKEN", "Role", "Tokens", "given_token", "kept_token", "server_tokens", "token_file"]

#: Reading changes nothing in a target: SQL, stacks, tables. Control runs code in it, or changes what it does. What is
#: open tells nothing of a target: the files of the dashboard, and the exchange of a code for a session.
Role = Literal["open", "read", "control"]
#: What a token may be: long enough that nobody tries them all, and fit for a header.
TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")


@dataclass(frozen=True)
class Tokens:
    """What a server takes for its tokens; never shown. `source` says where they are from."""

    control: str = field(repr=False)
    read: str | None = field(repr=False)
    source: str


def token_file(environ: Mapping[str, str] = os.environ) -> str:
    """The file of the token for everything: PROBE_TOKEN_FILE, or one in the user's own folder of settings."""
    if named := environ.get("PROBE_TOKEN_FILE"):
        return os.path.abspath(named)
    base = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "probe", "token")


def server_tokens(environ: Mapping[str, str] = os.environ) -> Tokens:
    """Those that a server goes by, made where there are none yet. Raises BadRequest."""
    if control := given_token(environ):
        read = _checked(environ.get("PROBE_READ_TOKEN") or None, "PROBE_READ_TOKEN")
        return Tokens(control, read, "the token is that in PROBE_TOKEN")
    path = token_file(environ)
    for name in (path, _reading(path)):
        if not os.path.lexists(name):
            _make(name)
    control, read = _kept(path), _kept(_reading(path))
    return Tokens(control, read, f"the token is in {path}, one for reading only in {_reading(path)}")


def given_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """The token that somebody has put into PROBE_TOKEN. Raises BadRequest when it cannot be one."""
    return _checked(environ.get("PROBE_TOKEN") or None, "PROBE_TOKEN")


def kept_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """The token in this user's file, for everything or else for reading; None where there is none."""
    path = token_file(environ)
    token = next((_kept(name) for name in (path, _reading(path)) if os.path.exists(name)), None)
    if token is None and environ.get("PROBE_TOKEN_FILE"):
        raise BadRequest(f"PROBE_TOKEN_FILE is {path}, and there is no such file", "correct the path")
    return token


def _reading(path: str) -> str:
    return path + ".read"


def _make(path: str) -> None:
    """A new token in `path`; of two who make one at once, the first wins."""
    part = f"{path}.{os.getpid()}.new"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
            os.link(part, path)
        except FileExistsError:
            return
        finally:
            os.unlink(part)
    except OSError as failure:
        raise BadRequest(
            f"cannot make a token in {path}: {failure.strerror}",
            "name a file with PROBE_TOKEN_FILE, or give the token itself in PROBE_TOKEN",
        ) from None


def _kept(path: str) -> str:
    try:
        with open(path) as file:
            status = os.fstat(file.fileno())
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as failure:
        raise BadRequest(f"cannot read the token in {path}: {failure}", "check its owner and mode (0600)") from None
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        raise BadRequest(
            f"the token in {path} is not ours alone (owner {status.st_uid}, mode {status.st_mode & 0o777:o})",
            f"chmod 600 {path}; if others may have read it, remove it, and the next server makes a new one",
        )
    token = _checked(text, path)
    assert token is not None
    return token


def _checked(token: str | None, where: str) -> str | None:
    if token is not None and not TOKEN.fullmatch(token):
        raise BadRequest(f"what is in {where} is no token", "it takes 16 to 512 letters, digits and ._~+/=-")
    return token
