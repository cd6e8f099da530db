"""Kernel thread ids (TIDs) of threads unknown to `threading`: started by `_thread`, from C or in a subinterpreter.

On Linux Python's thread identifier is the address of the C library's thread descriptor, which contains the TID at an
offset that the calling thread's own descriptor reveals. It is read through /proc/self/mem, where a wrong address is an
error. Runs on a thread of the recorder when all stacks are requested and such a thread exists: 55 µs.
"""

from __future__ import annotations

import os
import struct
from _thread import get_ident, get_native_id
from collections.abc import Collection

__all__ = ["native_ids"]

#: Part of the descriptor that is searched: the TID is at 720 in glibc on x86-64, earlier elsewhere.
_RECORD_BYTES = 1024
_NUMBER = struct.Struct("<i")


def native_ids(idents: Collection[int]) -> dict[int, int]:
    """Return the TID of each of `idents` for which it is certain."""
    if not idents:
        return {}
    tasks = {int(name) for name in os.listdir("/proc/self/task")}
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}  # the process has made itself unreadable
    try:
        offsets = _offsets(memory)
        found = {ident: {_number(memory, ident + offset) for offset in offsets} & tasks for ident in idents}
    finally:
        os.close(memory)
    return {ident: numbers.pop() for ident, numbers in found.items() if len(numbers) == 1}


def _offsets(memory: int) -> list[int]:
    """Return the offsets of the TID in the calling thread's own descriptor."""
    try:
        record = os.pread(memory, _RECORD_BYTES, get_ident())
    except OSError:
        return []
    own = _NUMBER.pack(get_native_id())
    return [at for at in range(0, len(record), _NUMBER.size) if record[at : at + _NUMBER.size] == own]


def _number(memory: int, address: int) -> int:
    try:
        (number,) = _NUMBER.unpack(os.pread(memory, _NUMBER.size, address))
    except (OSError, struct.error, OverflowError):
        return 0  # the thread has ended
    return int(number)
