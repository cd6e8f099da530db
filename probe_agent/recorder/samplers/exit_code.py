"""The exit code of the process, as its own C library is told it: the file `exit_code`.

`exit()` calls what `__cxa_atexit` has registered with the exit code as second argument, after the interpreter has gone.
`pthread_attr_setguardsize` stores its second argument in the memory that its first one points to, and does nothing
else. So it is registered with the file, mapped: 64 bytes of 0xFF, eight of which become the exit code. Nothing of
Python or of ours has to run, no system call is made, and `__cxa_finalize` takes the registration back. A process that
is killed or calls `os._exit` leaves the file as it was.

Runs on the recorder's thread: 64 bytes are read a tick, because a child that the job has forked from C, and that
exits, writes here too. Needs ctypes, which torch has imported, and glibc: musl passes no exit code.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..ring.folder import EXIT_CODE, NO_EXIT_CODE
from ..source import Recorder
from ..source import Source as BaseSource

__all__ = ["Source"]

_READ_WRITE, _SHARED, _PRIVATE_FIXED = 0x3, 0x01, 0x32
_FAILED = 2**64 - 1


class Source(BaseSource):
    name = "exit_code"
    needs = ("ctypes",)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._library: Any = None
        self._address = 0
        self._pid = os.getpid()

    def start(self) -> None:
        ctypes: Any = sys.modules["ctypes"]
        library = ctypes.CDLL(None)
        if not hasattr(library, "gnu_get_libc_version"):
            return
        self._library = library
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        descriptor = os.open(
            os.path.join(self.recorder.folder, EXIT_CODE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(descriptor, NO_EXIT_CODE)
            # Not Python's mmap, which would unmap it before the exit.
            self._address = self._map(0, _SHARED, descriptor)
        finally:
            os.close(descriptor)
        function = ctypes.cast(library.pthread_attr_setguardsize, ctypes.c_void_p)
        # The address also names the registration.
        library["__cxa_atexit"](function, ctypes.c_void_p(self._address), ctypes.c_void_p(self._address))

    def tick(self) -> None:
        if self._address:
            ctypes: Any = sys.modules["ctypes"]
            if ctypes.string_at(self._address, len(NO_EXIT_CODE)) != NO_EXIT_CODE:
                ctypes.memmove(self._address, NO_EXIT_CODE, len(NO_EXIT_CODE))

    def stop(self) -> None:
        if not self._address:
            return
        ctypes: Any = sys.modules["ctypes"]
        address, self._address = self._address, 0
        if os.getpid() != self._pid:  # a forked child: the file is its parent's
            self._map(address, _PRIVATE_FIXED, -1)
        self._library["__cxa_finalize"](ctypes.c_void_p(address))  # it calls the function once more
        ctypes.memmove(address, NO_EXIT_CODE, len(NO_EXIT_CODE))
        self._library.munmap(ctypes.c_void_p(address), ctypes.c_size_t(len(NO_EXIT_CODE)))

    def _map(self, address: int, flags: int, descriptor: int) -> int:
        found: int = self._library.mmap(address, len(NO_EXIT_CODE), _READ_WRITE, flags, descriptor, 0)
        if found == _FAILED:
            raise OSError("cannot map the file of the exit code")
        return found
