"""What eval code prints goes to whoever asked, what everybody else prints goes where it always went.

While code runs, the objects in `sys.stdout` and `sys.stderr` have a `write` of ours, and the training thread pays
one dictionary lookup a write. The objects themselves are never replaced: `print()` holds `sys.stdout` by a borrowed
reference (CPython until 3.13), and a stand-in that we took away while the job printed crashed it (seen: 2 of 8 runs).
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
        """With `may_wait`, code that prints faster than the client reads waits; else what is too much is lost."""
        self.num_lost_chars = 0
        #: Nobody listens any more.
        self.discard = False
        self._may_wait = may_wait
        self._chunks: list[tuple[str, str]] = []
        self._num_written = 0
        self._num_taken = 0

    def write(self, stream: str, text: str) -> int:
        """As `TextIOBase.write`."""
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
        """(stream, text) since the last time, neighbours of a stream joined."""
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
    """Our `write` and `isatty` on one stream object: `routes` says which threads are captured."""

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
        """Take off what is still ours; what the job has put over it meanwhile stays."""
        for key, function in self._ours.items():
            if vars(self._stream).get(key) is not function:
                continue
            if key in self._before:
                setattr(self._stream, key, self._before[key])
            else:
                delattr(self._stream, key)


class Capture:
    """Patches the streams while at least one piece of code runs."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._num_running = 0
        self._routes: dict[int, Sink] = {}
        self._patches: list[_Patch] = []

    def begin(self) -> None:
        """Code is about to run; each `begin` needs one `end`."""
        with self._lock:
            self._num_running += 1
            if self._num_running == 1:
                for name in STREAMS:
                    # A job without a stream, or with one that takes no attributes, keeps what it has.
                    with suppress(AttributeError, TypeError):
                        self._patches.append(_Patch(getattr(sys, name), name, self._routes))

    def end(self) -> None:
        """The code has ended. The last one restores the streams."""
        with self._lock:
            self._num_running -= 1
            if self._num_running == 0:
                self.restore()

    def restore(self) -> None:
        """Make the streams what they were: after the last piece of code, on detach, in a forked child."""
        for patch in self._patches:
            patch.remove()
        self._patches.clear()

    def route(self, ident: int, sink: Sink) -> None:
        """Capture this thread from now on."""
        self._routes[ident] = sink

    def unroute(self, ident: int) -> None:
        """Capture it no longer."""
        self._routes.pop(ident, None)

    def in_child(self) -> None:
        """After a fork: nobody reads what is captured here."""
        self._lock = allocate_lock()
        self._num_running = 0
        self._routes.clear()
        self.restore()
