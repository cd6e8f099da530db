"""The exit code of the process, as its own C library is told it: the permissions of the empty file `exit_code`.

`exit()` calls what `__cxa_atexit` has registered with the exit code as second argument, after the interpreter has gone.
So `fchmod` is registered, with the descriptor of the file as first argument: the code becomes the file's permissions,
and their time of change the time of the exit. Nothing of Python or of ours has to run, and `__cxa_finalize` takes the
registration back. A process that is killed or calls `os._exit` leaves the permissions as they were.

Runs on the recorder's thread: one `fstat` a tick, because a child that the job has forked from C, and that exits, would
write here too. Needs ctypes, which torch has imported, and glibc; under a seccomp filter it makes no new system call.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..guest.system_calls import are_filtered
from ..ring.folder import EXIT_CODE
from ..source import Recorder
from ..source import Source as BaseSource

__all__ = ["Source"]

_UNCHANGED = 0o600


class Source(BaseSource):
    name = "exit_code"
    needs = ("ctypes",)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._descriptor: int | None = None
        self._library: Any = None
        self._key: Any = None
        self._pid = os.getpid()

    def start(self) -> None:
        ctypes: Any = sys.modules["ctypes"]
        library = ctypes.CDLL(None)
        if not hasattr(library, "gnu_get_libc_version") or are_filtered():
            return  # musl passes no exit code
        path = os.path.join(self.recorder.folder, EXIT_CODE)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, _UNCHANGED)
        os.fchmod(self._descriptor, _UNCHANGED)
        self._library = library
        self._key = ctypes.create_string_buffer(1)  # its address names the registration
        function = ctypes.cast(library.fchmod, ctypes.c_void_p)
        key = ctypes.c_void_p(ctypes.addressof(self._key))
        library["__cxa_atexit"](function, ctypes.c_void_p(self._descriptor), key)

    def tick(self) -> None:
        if self._descriptor is not None and os.fstat(self._descriptor).st_mode & 0o7777 != _UNCHANGED:
            os.fchmod(self._descriptor, _UNCHANGED)

    def stop(self) -> None:
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        ctypes: Any = sys.modules["ctypes"]
        key = ctypes.c_void_p(ctypes.addressof(self._key))
        if os.getpid() != self._pid:  # a forked child, with no other thread: the file is its parent's
            os.close(descriptor)
            self._library["__cxa_finalize"](key)
            return
        self._library["__cxa_finalize"](key)  # it calls fchmod once more
        os.fchmod(descriptor, _UNCHANGED)
        os.close(descriptor)
