"""Stack of the main thread while the GIL is held: faulthandler on a spare signal.

Armed once on the recorder's thread, and free until the signal comes. The handler writes to the target's folder and
restarts the interrupted system call. It writes only the stack of the thread that takes the signal, the main one: for
running threads it would read frames that are being freed (113 dumps of two busy threads crashed CPython 3.10).
"""

from __future__ import annotations

import faulthandler
import os
import signal

__all__ = ["FaultDump"]


class FaultDump:
    """faulthandler on the highest unused real-time signal, writing to `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._signal: int | None = None

    def arm(self) -> int | None:
        """Return the signal that makes the target write its stack, None if no signal is free."""
        number = _spare_signal()
        if number is None:
            return None
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(number, file=self._file, all_threads=False, chain=False)
        self._signal = number
        return number

    def disarm(self) -> None:
        """Release the signal and close the file; also in a forked child."""
        if self._signal is not None:
            faulthandler.unregister(self._signal)
            self._signal = None
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _spare_signal() -> int | None:
    """Return an unused signal according to the kernel: `signal.getsignal` does not know handlers installed from C."""
    taken = 0
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(("SigCgt:", "SigIgn:")):
                taken |= int(line.split()[1], 16)
    for number in range(signal.SIGRTMAX, signal.SIGRTMIN - 1, -1):
        if not taken >> (number - 1) & 1:
            return number
    return None
