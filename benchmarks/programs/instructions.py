"""Instructions that this thread has executed in user mode: a figure that no other process changes.

Linux only, and only if `perf_event_paranoid` and the machine's processor allow it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

__all__ = ["counter", "read"]

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
#: struct perf_event_attr: a counter of the hardware, of instructions, without those of kernel and hypervisor.
_SIZE, _HARDWARE, _INSTRUCTIONS, _FLAGS = 128, 0, 1, 1 << 5 | 1 << 6


def counter() -> int | None:
    """Return a descriptor from which the 8 bytes of the count can be read; None without such a counter."""
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        return None
    attributes = ctypes.create_string_buffer(_SIZE)
    struct.pack_into("<IIQ", attributes, 0, _HARDWARE, _SIZE, _INSTRUCTIONS)
    struct.pack_into("<Q", attributes, 40, _FLAGS)
    descriptor = ctypes.CDLL(None).syscall(number, attributes, 0, -1, -1, 0)
    return descriptor if descriptor >= 0 else None


def read(descriptor: int | None) -> int:
    """Return the count so far; 0 without a counter."""
    return int.from_bytes(os.read(descriptor, 8), "little") if descriptor is not None else 0
