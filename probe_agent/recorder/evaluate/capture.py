"""Capture of the output of evaluated code; the job's own output is unaffected.

While code runs, the objects in `sys.stdout` and `sys.stderr` have a patched `write`, and the training thread pays one
dictionary lookup per write. The objects themselves are never replaced: `print()` holds `sys.stdout` by a borrowed
reference (CPython until 3.13), and removing a replacement while the job printed crashed it (in 2 of 8 runs).
"""

from __future__ import annotations

import sys
from _thread import allocate_lock, get_ident
from contextlib import suppress
from time import sleep
from typing import Any

__all__ = ["Capture", "Sink"]

MAX_WAITING_CHARS = 1 << 20
STREAMS = ("stdout", "stderr")


class Sink:
    """The output of one piece of code: written on its thread, taken on another."""

    def __init__(self, may_wait: bool) -> None:
        """With `may_wait`, code that prints faster than the client reads waits; otherwise the excess is lost."""
        self.num_lost_chars = 0
        #: The client has left.
        self.discard = False
        self._may_wait = may_wait
        self._chunks: list[tuple[str, str]] = []
        self._num_written = 0
        self._num_taken = 0

    def write(self, stream: str, text: str) -> int:
        """Write as `TextIOBase.write` does."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        while self._num_written - self._num_taken > MAX_WAITING_CHARS and not self.discard:
            if not self._may_wait:
                self.num_lost_chars += len(text)
                return len(text)
            sleep(0.005)
        if text and not self.discard:
            self._num_written += len(text)
            self._chunks.append((stream, text))
        return len(text)

    def take(self) -> list[tuple[str, str]]:
        """Return (stream, text) since the last call, with adjacent texts of a stream joined."""
        count = len(self._chunks)
        taken = self._chunks[:count]
        del self._chunks[:count]
        joined: list[tuple[str, str]] = []
        start = 0
        for end in range(1, count + 1):
            if end == count or taken[end][0] != taken[start][0]:
                text = "".join(text for _, text in taken[start:end])
                self._num_taken += len(text)
                joined.append((taken[start][0], text))
                start = end
        return joined


class _Patch:
    """Patched `write` and `isatty` of one stream object; `routes` has the threads that are captured."""

    def __init__(self, stream: Any, name: str, routes: dict[int, Sink]) -> None:
        write, isatty = stream.write, stream.isatty
        self._stream = stream
        self._before = {key: vars(stream)[key] for key in ("write", "isatty") if key in vars(stream)}

        def captured_write(text: str) -> Any:
            sink = routes.get(get_ident())
            return write(text) if sink is None else sink.write(name, text)

        def captured_isatty() -> Any:
            return get_ident() not in routes and isatty()

        self._ours: dict[str, Any] = {"write": captured_write, "isatty": captured_isatty}
        for key, function in self._ours.items():
            setattr(stream, key, function)

    def remove(self) -> None:
        """Remove the patch, except where the job has patched over it."""
        for key, function in self._ours.items():
            if vars(self._stream).get(key) is not function:
                continue
            if key in self._before:
                setattr(self._stream, key, self._before[key])
            else:
                delattr(self._stream, key)


class Capture:
    """Patches of the streams while at least one evaluation runs."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._num_running = 0
        self._routes: dict[int, Sink] = {}
        self._patches: list[_Patch] = []

    def begin(self) -> None:
        """Patch the streams; each `begin` needs one `end`."""
        with self._lock:
            self._num_running += 1
            if self._num_running == 1:
                for name in STREAMS:
                    # A missing stream, or one without attributes, stays as it is.
                    with suppress(AttributeError, TypeError):
                        self._patches.append(_Patch(getattr(sys, name), name, self._routes))

    def end(self) -> None:
        """Restore the streams with the last `end`."""
        with self._lock:
            self._num_running -= 1
            if self._num_running == 0:
                self.restore()

    def restore(self) -> None:
        """Remove all patches: after the last evaluation, on detach, in a forked child."""
        for patch in self._patches:
            patch.remove()
        self._patches.clear()

    def route(self, ident: int, sink: Sink) -> None:
        """Start to capture this thread."""
        self._routes[ident] = sink

    def unroute(self, ident: int) -> None:
        """Stop capturing this thread."""
        self._routes.pop(ident, None)

    def in_child(self) -> None:
        """Reset after a fork: no client reads the output of the child."""
        self._lock = allocate_lock()
        self._num_running = 0
        self._routes.clear()
        self.restore()
