"""The end of a target, put together from what it, its C library, other ranks, the host server and the kernel have left.

Runs beside the target; a few small files each, and the kernel's log only where the other files leave the cause open.
"""

from __future__ import annotations

import os
import re
import signal
import struct
from dataclasses import dataclass
from functools import lru_cache
from time import CLOCK_MONOTONIC, clock_gettime, time
from typing import Any

from probe_agent.recorder.ring.folder import END, EXIT_CODE, FATAL, GONE, NO_EXIT_CODE, OOM, ring_name
from probe_agent.untrusted_files import opened

from .folder_files import read_json, read_text
from .rings import Ring, RingError

__all__ = ["End", "end_of", "exceptions_of"]

#: Kernel messages this long before or after the last change of the folder are about this process.
_BEFORE_S, _AFTER_S = 600.0, 30.0
_MAX_LOG_BYTES = 4 << 20
#: One of the words of the file of the exit code, as long as it does not hold it.
_NO_WORD = 2**64 - 1
#: faulthandler's first line, in all versions of Python.
_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_FATAL_SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
}


@dataclass(frozen=True)
class End:
    """The end of a target, or its beginning: the interpreter may still be shutting down."""

    #: Seconds since 1970 on its host's clock; None if nobody saw it.
    at: float | None
    #: When its recorder last ticked.
    last_seen: float
    how: str
    #: Whether it was killed or raised, or nobody knows.
    badly: bool = True
    #: Its exit code, or minus the signal that killed it; None if unknown.
    code: int | None = None
    #: What `how` rests on: the target itself, its exit code, its fatal signal, a witness, the kernel.
    known_from: tuple[str, ...] = ()

    @property
    def signal(self) -> str | None:
        """The signal that killed it, None if none did or it is unknown."""
        return _signal(-self.code) if self.code is not None and self.code < 0 else None


def end_of(folder: str, *, pid: int | None = None, is_alive: bool = False) -> End | None:
    """Return how the target with this folder ended, at an unknown time if nothing is written down; None if the folder
    is gone. Of a living one, what its interpreter says while it shuts down."""
    try:
        status = os.stat(folder)
    except OSError:
        return None
    if is_alive:
        own, at = _own(folder)
        return End(at, status.st_mtime, _own_words(own, None), badly=own.get("how") != "exit")
    return _end_of_dead(folder, pid, status.st_mtime, _exit_code(folder), _size(os.path.join(folder, GONE)))


@lru_cache(maxsize=512)  # of a dead target nothing changes but these arguments
def _end_of_dead(folder: str, pid: int | None, last_seen: float, exit_code: int | None, said_by_others: int) -> End:
    own, own_at = _own(folder)
    gone = read_json(os.path.join(folder, GONE)) or ({} if own else read_json(os.path.join(folder, END)) or {})
    gone_at = gone.get("at") if isinstance(gone.get("at"), float) else None
    code = gone.get("code") if isinstance(gone.get("code"), int) else None
    known_from = ["itself"] if own else []
    if code is not None:
        known_from.append(str(gone.get("seen_by", "a witness"))[:100])
    fatal_at, fatal_signal = _fatal_signal(folder)
    if code is None and fatal_signal is not None:
        code = -fatal_signal
        known_from.append("its fatal signal")
    if code is None and exit_code is not None:
        code = exit_code
        known_from.append("its exit code")
    at = own_at or fatal_at or gone_at
    if code is not None and code < 0:
        at = own_at or fatal_at or gone_at
        memory = _out_of_memory(folder, pid, last_seen) if code == -signal.SIGKILL else ""
        known_from += ["the kernel"] if memory else []
        how = f"was killed by {_signal(-code)}{memory}"
        if own:
            how = f"{_own_words(own, None)}, and {how} while it ended" if own["how"] == "raised" else f"{how} at exit"
        return End(at, last_seen, how, True, code, tuple(known_from))
    raised = exceptions_of(folder)[:1] if code or not own else []
    if own.get("how") != "raised" and raised and raised[0]["is_main"] and code != 0:
        how = f"raised {raised[0]['type']}: {raised[0]['message']}".partition("\n")[0]
        how += "" if code in (None, 1) else f", exit code {code}"
        return End(at, last_seen, how, True, code, (*known_from, "its uncaught exception"))
    if own:
        badly = own.get("how") != "exit" or bool(code)
        return End(at, last_seen, _own_words(own, code), badly, code, tuple(known_from))
    if code is not None:
        handlers = "" if exit_code is not None else ", without its exit handlers"
        return End(at, last_seen, f"exited with code {code}{handlers}", bool(code), code, tuple(known_from))
    memory = _out_of_memory(folder, pid, last_seen)
    if memory:
        return End(at, last_seen, f"was killed by SIGKILL{memory}", True, -signal.SIGKILL, ("the kernel",))
    if gone_at is not None:
        return End(gone_at, last_seen, "disappeared, cause unknown")
    if os.path.exists(os.path.join(folder, EXIT_CODE)):
        return End(None, last_seen, "ended, cause unknown: it was killed, or called os._exit")
    return End(None, last_seen, "ended, cause unknown")


def exceptions_of(folder: str) -> list[dict[str, Any]]:
    """Return the newest uncaught exception and what caused it: rows of `python.exceptions`. The main thread's goes
    before those of other threads. Empty if there is none."""
    try:
        ring = Ring(os.path.join(folder, ring_name("python.exceptions")))
        numbers = range(max(0, ring.head - ring.capacity), ring.head)
        rows = [row for number in numbers if (row := ring.row_number(number))]
    except (RingError, OSError):
        return []
    newest = max(rows, key=lambda row: (bool(row["is_main"]), int(str(row["number"]))), default=None)
    return [row for row in rows if newest is not None and row["number"] == newest["number"]]


def _own(folder: str) -> tuple[dict[str, Any], float | None]:
    """Return what the target said of its end, and when that was."""
    own = read_json(os.path.join(folder, END)) or {}
    at = own.get("at")
    is_own = own.get("how") in ("exit", "raised")  # earlier recorders wrote there of others, too
    return (own, at) if is_own and isinstance(at, float) else ({}, None)


def _own_words(own: dict[str, Any], code: int | None) -> str:
    if own.get("how") == "raised":
        return f"raised {own.get('error')}"
    return f"exited with code {code}" if code else "exited normally"


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _exit_code(folder: str) -> int | None:
    """Return with which code the target called exit(); None if it did not."""
    try:
        with opened(os.path.join(folder, EXIT_CODE)) as descriptor:
            content = os.read(descriptor, len(NO_EXIT_CODE))
    except OSError:
        return None
    if len(content) != len(NO_EXIT_CODE):
        return None
    words = [word for (word,) in struct.iter_unpack("Q", content) if word != _NO_WORD]
    return words[0] & 0xFF if len(words) == 1 else None


def _fatal_signal(folder: str) -> tuple[float | None, int | None]:
    """Return when faulthandler wrote its dump, and for which signal."""
    text, at = read_text(os.path.join(folder, FATAL))
    named = _FATAL.findall(text)
    number = _FATAL_SIGNALS.get(named[-1]) if named else None
    return (at, int(number)) if number is not None else (None, None)


def _out_of_memory(folder: str, pid: int | None, last_seen: float) -> str:
    """Return what the kernel says of a kill for want of memory; empty if it says nothing."""
    said = _log_line(pid, last_seen) if pid is not None else ""
    if "Killed process" in said:
        where = "of its cgroup" if "emory cgroup" in said else "of the host"
        resident = re.search(r"anon-rss:(\d+)kB", said)
        used = f", {int(resident[1]) / 1024:,.0f} MiB of it resident" if resident else ""
        return f": the OOM killer {where}{used}"
    before = read_json(os.path.join(folder, OOM)) or {}
    kills, path = before.get("kills"), str(before.get("file", ""))
    if not isinstance(kills, int) or not path.startswith("/sys/fs/cgroup/") or ".." in path:
        return ""
    try:
        with open(path) as file:
            now = next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), kills)
    except (OSError, ValueError):
        return ""  # the cgroup has gone
    return ": probably the OOM killer, which has struck in its cgroup since" if now > kills else ""


def _log_line(pid: int, last_seen: float) -> str:
    """Return the newest line of the kernel's log about a kill of `pid` for want of memory; empty if there is none, or
    the log may not be read."""
    started = time() - clock_gettime(CLOCK_MONOTONIC)
    wanted = re.compile(rf"Killed process {pid} \(")
    found = ""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        read = 0
        while read < _MAX_LOG_BYTES:
            try:
                record = os.read(descriptor, 8192).decode("utf-8", "replace")
            except BrokenPipeError:
                continue  # overwritten meanwhile
            read += len(record)
            head, _, text = record.partition(";")
            at = started + int(head.split(",")[2]) * 1e-6
            if wanted.search(text) and -_BEFORE_S < at - last_seen < _AFTER_S:
                found = text
    except (BlockingIOError, ValueError, IndexError):
        return found
    finally:
        os.close(descriptor)
    return found


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
