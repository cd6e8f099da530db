"""The kernel's number of threads that `threading` does not know: started by `_thread`, from C, or in a subinterpreter.

Runs on a thread of ours, when somebody asks for all stacks and such a thread is there: 55 µs. What Python calls a
thread's identifier is, on Linux, the address of the C library's record of it. The kernel's number stands in there, at a
place that is found by our own record. It is read through /proc/self/mem, where a wrong address is an error.
"""

from __future__ import annotations

import os
import struct
from _thread import get_ident, get_native_id
from collections.abc import Collection

__all__ = ["native_ids"]

#: As much of the record is searched: the number is at 720 in glibc on x86-64, and earlier elsewhere.
_RECORD_BYTES = 1024
_NUMBER = struct.Struct("<i")


def native_ids(idents: Collection[int]) -> dict[int, int]:
    """The kernel's number for each of `idents` for which it can be told for sure."""
    if not idents:
        return {}
    tasks = {int(name) for name in os.listdir("/proc/self/task")}
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}  # a process that has made itself unreadable
    try:
        places = _places(memory)
        found = {ident: {_number(memory, ident + place) for place in places} & tasks for ident in idents}
    finally:
        os.close(memory)
    return {ident: numbers.pop() for ident, numbers in found.items() if len(numbers) == 1}


def _places(memory: int) -> list[int]:
    """Where in our own thread's record its number stands."""
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
        return 0  # the thread has ended meanwhile
    return int(number)
