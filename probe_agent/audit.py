"""What was done to targets, and by whom: two lines of JSON for each action, one when it begins and one when it ends.

The file is appended to and never changed, and its user alone can read it: `audit-HOST.jsonl` in the user's folder of
state, or, where there is no such folder, beside the targets in shared memory. One a host, because a home may be on all
of them. What cannot be written down is not done.

Runs beside the target, wherever a question is answered: two short writes for each action.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from time import time

from .errors import ProbeError

__all__ = ["Action", "Entry", "begin", "end", "entries"]

#: How much of the end of a file is read: some ten thousand actions.
_READ_BYTES = 16 << 20


@dataclass(frozen=True)
class Action:
    """What somebody does: `peer` and `role` say who, `text` is all of what they sent."""

    peer: str
    role: str
    action: str
    text: str
    #: The target, as it says of itself: host, pid, rank, world_size, and its folder.
    target: Mapping[str, object]


@dataclass(frozen=True)
class Entry:
    """One action as it was written down; `result` is None while it goes on, or when nobody could say how it ended."""

    ts: float
    action: Action
    result: str | None


def begin(action: Action) -> str:
    """Write down that it begins. Returns what `end` takes. Raises ProbeError: then it must not be done."""
    number = uuid.uuid4().hex
    _append({"id": number, "ts": time(), **asdict(action)})
    return number


def end(number: str, result: str) -> None:
    """Write down how it went. Raises ProbeError."""
    _append({"id": number, "ended": time(), "result": result})


def entries(environ: Mapping[str, str] = os.environ) -> list[Entry]:
    """The newest actions of this host, oldest first."""
    begun: dict[str, dict[str, object]] = {}
    results: dict[str, str] = {}
    for path in _paths(environ):
        for line in _lines(path):
            if "ended" in line:
                results[str(line.get("id"))] = str(line.get("result"))
            else:
                begun[str(line.get("id"))] = line
    found = [_entry(line, results.get(number)) for number, line in begun.items()]
    return sorted(filter(None, found), key=lambda entry: entry.ts)


def _paths(environ: Mapping[str, str]) -> tuple[str, str]:
    state = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    name = f"audit-{socket.gethostname()}.jsonl"
    return os.path.join(state, "probe", name), os.path.join(f"/dev/shm/probe-{os.geteuid()}", name)


def _append(line: Mapping[str, object]) -> None:
    data = json.dumps(line).encode() + b"\n"
    refused = []
    for path in _paths(os.environ):
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
            try:
                _check(descriptor, path)
                if os.write(descriptor, data) == len(data):
                    return
                refused.append(f"{path}: no room")
            finally:
                os.close(descriptor)
        except OSError as failure:
            refused.append(f"{path}: {failure.strerror}")
    raise ProbeError(
        "nothing was done, because it cannot be written down: " + "; ".join(refused),
        "make room there, or name a folder of state with XDG_STATE_HOME",
    )


def _check(descriptor: int, path: str) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(1, "it is not ours alone", path)


def _lines(path: str) -> Iterator[dict[str, object]]:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _READ_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return  # nothing was written there yet
    for line in lines:
        try:
            decoded = json.loads(line)
        except ValueError:
            continue  # the first may be cut, the last may be on its way
        if isinstance(decoded, dict):
            yield decoded


def _entry(line: dict[str, object], result: str | None) -> Entry | None:
    ts, target = line.get("ts"), line.get("target")
    if not isinstance(ts, float) or not isinstance(target, dict):
        return None
    peer, role, action, text = (str(line.get(name, "")) for name in ("peer", "role", "action", "text"))
    return Entry(ts, Action(peer, role, action, text, target), result)
