"""What was done to targets, and by whom: two lines of JSON for each action, one when it begins and one when it ends.

The file is appended to and never changed, and its user alone can read it: `audit-HOST.jsonl` in the user's folder of
state, or, where there is no such folder, beside the targets in shared memory. One a host, because a home may be on all
of them. What cannot be written down is not done.

A file that is long enough is set aside under the next number, `audit-HOST.jsonl.1`, `.2` and so on; of these the newest
are kept. Any number of processes write at once, without waiting for each other: whoever finds the file too long locks
it and sets it aside, and whoever has written to a file that was set aside meanwhile writes the same line to its
successor as well. So a line is there once or twice, and never only in a file that is about to go.

Runs beside the target, wherever a question is answered: two short writes for each action, 0.14 ms together.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from time import time

from .errors import ProbeError

__all__ = ["Action", "Entry", "begin", "end", "entries", "notes"]

#: A file that would get longer is set aside, and so many of those are kept: with the one that is written, 64 MiB.
MAX_BYTES = 8 << 20
NUM_KEPT = 7
#: How much of the newest is read: some ten thousand actions.
READ_BYTES = 16 << 20
#: How often a line is begun anew because its file is set aside just then. That it happens once is rare.
_MAX_TIMES = 5
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND | _SAFELY


@dataclass(frozen=True)
class Action:
    """What somebody does: `peer` and `role` say who, `text` is all of what they sent."""

    peer: str
    role: str
    action: str
    text: str
    #: The target, as it says of itself: host, pid, rank, world_size, job, and its folder.
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
        for line in _newest_lines(path):
            if "ended" in line:
                results[str(line.get("id"))] = str(line.get("result"))
            else:
                begun[str(line.get("id"))] = line
    found = [_entry(line, results.get(number)) for number, line in begun.items()]
    return sorted(filter(None, found), key=lambda entry: entry.ts)


def notes(environ: Mapping[str, str] = os.environ) -> list[str]:
    """What has to be known about `entries`: why there may have been others."""
    said = []
    for path in _paths(environ):
        try:
            aside = _set_aside(path)
        except FileNotFoundError:
            continue  # nothing was ever written there
        except OSError as failure:
            said.append(f"{os.path.dirname(path)} is not read: {failure.strerror}")
            continue
        if aside and aside[0] > 1:
            said.append(
                f"the oldest actions are kept no longer: those of {aside[0] - 1} files of {MAX_BYTES >> 20} MiB before"
                f" {path}.{aside[0]}"
            )
        num_bytes = 0
        for name in (path, *_names(path, aside)):
            try:
                with _reading(name) as descriptor:
                    num_bytes += os.fstat(descriptor).st_size
            except FileNotFoundError:
                continue  # nothing was written there yet, or it is no longer kept
            except OSError as failure:
                said.append(f"{name} is not read: {failure.strerror}")
        if num_bytes > READ_BYTES:
            said.append(f"these are the newest {READ_BYTES >> 20} MiB of actions; older ones are in {path}.*")
    return said


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
            if _write(path, data):
                return
            refused.append(f"{path}: no room")
        except OSError as failure:
            refused.append(f"{path}: {failure.strerror}")
    raise ProbeError(
        "nothing was done, because it cannot be written down: " + "; ".join(refused),
        "make room there, or name a folder of state with XDG_STATE_HOME",
    )


def _write(path: str, data: bytes) -> bool:
    """Append `data`; False where there is no room for all of it."""
    for times_left in reversed(range(_MAX_TIMES)):
        descriptor = os.open(path, _APPENDING, 0o600)
        try:
            _check(descriptor, path)
            size = os.fstat(descriptor).st_size
            if times_left and size and size + len(data) > MAX_BYTES and _put_aside(path, descriptor):
                continue
            # Behind a line that somebody had no room for to its end.
            line = b"\n" * bool(size and os.pread(descriptor, 1, size - 1) != b"\n") + data
            if os.write(descriptor, line) != len(line):
                return False
            if _is_at(path, descriptor):
                return True
        finally:
            os.close(descriptor)
    return True


def _put_aside(path: str, descriptor: int) -> bool:
    """Whether the file behind `descriptor` has another name now, given by us or by somebody else."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(path, descriptor):
            return True
        # As long as we have the lock nobody else gives this file a name, and there is no successor yet.
        numbers = _set_aside(path)
        free = f"{path}.{numbers[-1] + 1 if numbers else 1}"
        if os.path.lexists(free):
            return False
        os.rename(path, free)
    except OSError:
        return False  # somebody else is at it, or it cannot be renamed here: it gets longer, and nothing is lost
    for name in _names(path, numbers[: max(0, len(numbers) + 1 - NUM_KEPT)]):
        with suppress(OSError):  # somebody has tidied up, or it is not ours to remove
            os.unlink(name)
    return True


def _is_at(path: str, descriptor: int) -> bool:
    """Whether `path` names the file behind `descriptor`."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _set_aside(path: str) -> list[int]:
    """The numbers of the files that were set aside and are kept, oldest first. Raises OSError."""
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(name) + r"\.([1-9]\d*)")
    return sorted(int(found[1]) for found in map(pattern.fullmatch, os.listdir(folder)) if found)


def _names(path: str, numbers: Sequence[int]) -> list[str]:
    return [f"{path}.{number}" for number in numbers]


def _check(descriptor: int, path: str) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(1, "it is not ours alone", path)


def _newest_lines(path: str) -> Iterator[dict[str, object]]:
    """The newest lines of the file and of those set aside; of these first what is newest of all, so that what is set
    aside meanwhile is seen twice rather than not."""
    left = READ_BYTES
    data = _end_of(path, left)
    yield from _decoded(data)
    try:
        aside = _set_aside(path)
    except OSError:
        return  # nothing was written there yet, or `notes` says why
    for name in reversed(_names(path, aside)):
        left -= len(data)
        if left <= 0:
            return
        data = _end_of(name, left)
        yield from _decoded(data)


def _end_of(path: str, num_bytes: int) -> bytes:
    """So much of the end of a file of ours; nothing of one that is not ours alone."""
    try:
        with _reading(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - num_bytes))
            return file.read(num_bytes)
    except OSError:
        return b""  # nothing was written there yet, or it is no longer kept; or `notes` says why


@contextmanager
def _reading(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | _SAFELY)
    try:
        _check(descriptor, path)
        yield descriptor
    finally:
        os.close(descriptor)


def _decoded(data: bytes) -> Iterator[dict[str, object]]:
    for line in data.splitlines():
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
