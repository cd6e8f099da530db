"""Stack of the thread that dies of SIGSEGV, SIGFPE, SIGABRT, SIGBUS or SIGILL: faulthandler, writing to `fatal.txt`.

faulthandler has one file for the whole process. So it is enabled only while the job has neither enabled it nor a
handler of its own for one of these signals, and it is given up as soon as the job asks for it: the job's calls of
`faulthandler.enable`, `disable` and `is_enabled` do what they do without the recorder. After the dump the signal is
raised again with the default action, so exit status and core dump stay as they are.

Only the stack of the failing thread is written: other threads' frames may be freed while they are read, and a second
fault would change the exit status. Costs nothing until the signal comes. Needs ctypes, which torch has imported.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ..ring.folder import FATAL
from ..source import Recorder
from ..source import Source as BaseSource

__all__ = ["Source"]

_SIGNALS = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
#: Larger than the C library's `struct sigaction`, whose first member is the handler.
_ACTION_BYTES = 256


class _File:
    """The file that faulthandler writes to, which keeps it for as long as it is enabled."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def fileno(self) -> int:
        return self.descriptor

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


class Source(BaseSource):
    name = "fatal_signals"
    needs = ("ctypes",)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._file: _File | None = None
        #: What faulthandler has set for each signal.
        self._handlers: dict[int, bytes] = {}
        self._module: Any = None
        self._originals: dict[str, Callable[..., Any]] = {}

    def start(self) -> None:
        path = os.path.join(self.recorder.folder, FATAL)
        handled = [number.name for number in _SIGNALS if _is_taken(number)]
        if faulthandler.is_enabled():
            _remark(path, "the job has enabled faulthandler itself: the stack is in its output")
            return
        if handled:
            _remark(path, f"the job has its own handler of {', '.join(handled)}")
            return
        self._file = _File(path)
        # The job's `import faulthandler` must find the functions below.
        self._module = sys.modules.setdefault("faulthandler", faulthandler)
        for name in ("enable", "disable", "is_enabled"):
            self._originals[name] = getattr(self._module, name)
        self._originals["enable"](file=self._file, all_threads=False)
        self._handlers = {number: self._action(number)[:8] for number in _SIGNALS}
        for name, ours in _replacements(self).items():
            setattr(self._module, name, ours)

    def tick(self) -> None:
        if self._file is not None and not self.is_ours():
            self.leave()  # the job had a reference to the original function

    def stop(self) -> None:
        for name, original in self._originals.items():
            if getattr(self._module, name).__dict__.get("original") is original:
                setattr(self._module, name, original)
        self._disable()

    def is_ours(self) -> bool:
        """Return whether faulthandler still writes to our file."""
        return self._file is not None and any(one is self._file for one in gc.get_referents(faulthandler))

    def leave(self) -> bool:
        """Leave faulthandler to the job, as if it had never been enabled. Return whether it was ours until now."""
        was_ours, had_file = self.is_ours(), self._file is not None
        self._disable()
        if had_file:
            _remark(os.path.join(self.recorder.folder, FATAL), "the job has enabled faulthandler itself since")
        return was_ours

    def _disable(self) -> None:
        was_ours, file, self._file = self.is_ours(), self._file, None
        if was_ours:
            # It puts back the default action, also where the job has set a handler since.
            now = {number: self._action(number) for number in _SIGNALS}
            self._originals["disable"]()
            for number, action in now.items():
                if action[:8] != self._handlers[number]:
                    self._action(number, action)
        if file is not None:
            os.close(file.descriptor)

    def _action(self, number: int, new: bytes | None = None) -> bytes:
        """Return the kernel's action for a signal, as bytes, and set `new`."""
        ctypes: Any = sys.modules["ctypes"]
        old = ctypes.create_string_buffer(_ACTION_BYTES)
        ctypes.CDLL(None).sigaction(number, new, old)
        return bytes(old.raw)


def _replacements(source: Source) -> dict[str, Callable[..., Any]]:
    """Return the job's functions of faulthandler: what they do without the recorder."""
    originals = source._originals

    def enable(*args: Any, **kwargs: Any) -> Any:
        source.leave()
        return originals["enable"](*args, **kwargs)

    def disable() -> Any:
        return False if source.leave() else originals["disable"]()

    def is_enabled() -> Any:
        return False if source.is_ours() else originals["is_enabled"]()

    found: dict[str, Callable[..., Any]] = {"enable": enable, "disable": disable, "is_enabled": is_enabled}
    for name, ours in found.items():
        functools.update_wrapper(ours, originals[name])
        ours.__dict__["original"] = originals[name]
    return found


def _is_taken(number: int) -> bool:
    """Return whether a signal is handled or ignored, according to the kernel."""
    with open("/proc/self/status") as status:
        masks = [int(line.split()[1], 16) for line in status if line.startswith(("SigCgt:", "SigIgn:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def _remark(path: str, text: str) -> None:
    """Write why there is no dump."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"# {text}\n".encode())
    finally:
        os.close(descriptor)
