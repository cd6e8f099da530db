"""Reader of the kernel's log: /dev/kmsg, the system call syslog, or the journal, whichever is allowed first.

Runs in the host server when a query asks, for a few ms. Nobody gets all of these lines: see kernel_events.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Line", "LogUnreadable", "from_journal", "from_kmsg", "from_syslog", "read_log"]

#: Lines of the journal that are read, the newest.
MAX_LINES = 20_000
_SYSLOG_READ_ALL, _SYSLOG_SIZE = 3, 10


class LogUnreadable(Exception):
    """The kernel's log may not be read here; the text says why."""


@dataclass(frozen=True)
class Line:
    """One line of the log; `at` is in seconds since 1970."""

    at: float
    text: str


def read_log() -> tuple[list[Line], str]:
    """Return the log, oldest line first, and where it was read from. Raises LogUnreadable.

    The kernel stamps a line before it puts it behind the others: those of two processors may stand the wrong way round.
    """
    refusals = []
    for name, read in (("/dev/kmsg", _kmsg), ("syslog(2)", _syslog), ("the journal", _journal)):
        try:
            return sorted(read(), key=lambda line: line.at), name
        except OSError as refusal:
            refusals.append(f"{name}: {refusal.strerror or refusal}")
    raise LogUnreadable("; ".join(refusals))


def _kmsg() -> Iterable[Line]:
    boot = _boot_time()
    file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return list(from_kmsg(_records(file), boot))
    finally:
        os.close(file)


def _records(file: int) -> Iterator[str]:
    while True:
        try:
            yield os.read(file, 1 << 14).decode("utf-8", "replace")
        except BlockingIOError:
            return
        except BrokenPipeError:  # it was overwritten: the next read goes on behind that
            continue


def _syslog() -> Iterable[Line]:
    libc = ctypes.CDLL(None, use_errno=True)
    size = libc.klogctl(_SYSLOG_SIZE, None, 0)
    buffer = ctypes.create_string_buffer(max(size, 0) or 1 << 20)
    length = libc.klogctl(_SYSLOG_READ_ALL, buffer, len(buffer))
    if length < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return from_syslog(buffer.raw[:length].decode("utf-8", "replace"), _boot_time())


def _journal() -> Iterable[Line]:
    program = shutil.which("journalctl")
    if program is None:
        raise FileNotFoundError(2, "no journalctl here")
    command = [program, "--dmesg", "--boot", "--output=json", "--no-pager", "--quiet", f"--lines={MAX_LINES}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    lines = list(from_journal(done.stdout))
    if not lines:
        raise PermissionError(1, done.stderr.strip().split("\n")[0] or "it shows this user no line of the kernel")
    return lines


def _boot_time() -> float:
    """When the clock of the log was 0. The kernel's log clock may drift from this one by seconds in months."""
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)


def from_kmsg(records: Iterable[str], boot: float) -> Iterator[Line]:
    """Yield the lines of /dev/kmsg: `priority,sequence,microseconds,flags;text`, with fields below."""
    for record in records:
        head, _, text = record.partition(";")
        fields = head.split(",")
        if len(fields) >= 3 and fields[2].isdigit():
            yield Line(boot + int(fields[2]) / 1e6, text.split("\n")[0])


_SYSLOG_LINE = re.compile(r"(?:<\d+>)?\[ *(\d+\.\d+)\](?:\[ *[TC]\d+\])? ?(.*)")


def from_syslog(text: str, boot: float) -> Iterator[Line]:
    """Yield the lines as syslog(2) and `dmesg --raw` give them: `<6>[  123.456789] text`."""
    for line in text.splitlines():
        found = _SYSLOG_LINE.match(line)
        if found is not None:
            yield Line(boot + float(found[1]), found[2])


def from_journal(text: str) -> Iterator[Line]:
    """Yield the lines of `journalctl --output=json`."""
    for line in text.splitlines():
        entry = json.loads(line)
        message, at = entry.get("MESSAGE"), entry.get("__REALTIME_TIMESTAMP")
        if isinstance(message, str) and at is not None:
            yield Line(int(at) / 1e6, message)
