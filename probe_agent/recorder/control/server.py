"""Control socket of the recorder: one request per connection, JSON lines, a thread per request.

The recorder's thread accepts and ticks (`serve`); every request gets a short-lived thread, so that a long eval delays
neither stacks nor ticks. Costs the training thread nothing without requests, and tens of microseconds of the GIL per
request besides the operation itself.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from ..guest import own_threads, switch_interval
from .reply import Gone, Reply

__all__ = ["ControlServer", "Operation", "Reply"]

Operation = Callable[[Mapping[str, Any], Reply], "Mapping[str, object] | None"]

#: Limit of a request, which has to fit into the target's memory.
MAX_REQUEST_BYTES = 16 << 20
REQUEST_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 64
#: Fields that make a reading request one for those who control the target.
_MORE_THAN_READING = ("changes", "locals")
#: Error class, beside the target, of a request that is not permitted.
_NO = "Forbidden"


class ControlServer:
    """Server on the unix socket `path` that answers by `operations`; failures go to `on_error(source, error)`."""

    def __init__(
        self, path: str, operations: Mapping[str, Operation], on_error: Callable[[str, BaseException], object]
    ) -> None:
        self._path = path
        self._operations = operations
        self._on_error = on_error
        self._listener: socket.socket | None = None
        self._stopping = False
        self._pid = os.getpid()
        self._replies: set[Reply] = set()
        self._kept: set[Reply] = set()
        self._allowed: Collection[str] | None = None
        self._poller = select.poll()
        self._watched: dict[int, Callable[[], None]] = {}

    def allow_only(self, reading: Collection[str]) -> None:
        """Answer only the operations in `reading`, and only requests that change nothing."""
        self._allowed = frozenset(reading)

    def listen(self) -> None:
        """Start to listen. Raises OSError."""
        if os.path.exists(self._path):
            os.unlink(self._path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path)
        os.chmod(self._path, 0o600)
        self._listener.listen(MAX_CONNECTIONS)
        self._listener.setblocking(False)

    def serve(self, tick: Callable[[], None], tick_s: float) -> None:
        """Accept connections and call `tick` every `tick_s` seconds, until `stop_serving`. Never raises."""
        own_threads.enter()
        try:
            self._serve(tick, tick_s)
        finally:
            own_threads.leave()

    def _serve(self, tick: Callable[[], None], tick_s: float) -> None:
        assert self._listener is not None, "listen() comes first"
        poller, listener = self._poller, self._listener.fileno()
        poller.register(listener, select.POLLIN)
        next_tick = monotonic() + tick_s
        while not self._stopping:
            try:
                for descriptor, _ in poller.poll(max(0.0, next_tick - monotonic()) * 1e3):
                    if descriptor != listener:
                        self._act_on(descriptor)
                    elif not self._stopping:
                        self._accept()
                if monotonic() >= next_tick:
                    next_tick = monotonic() + tick_s
                    tick()
                    self._rest()
            except Exception as error:  # the border: the recorder's thread must go on
                self._on_error("control", error)
                sleep(0.01)  # an immediate failure, such as accept without a free descriptor, must not spin

    def watch(self, descriptor: int, act: Callable[[], None]) -> None:
        """Call `act` once on the recorder's thread when the descriptor is ready."""
        self._watched[descriptor] = act
        self._poller.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`; the descriptor must still be open."""
        if self._watched.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def _act_on(self, descriptor: int) -> None:
        act = self._watched[descriptor]
        self.unwatch(descriptor)
        act()

    def stop_serving(self) -> None:
        """Make `serve` return and cancel running requests; callable from any thread of the recorder."""
        self._stopping = True
        if self._listener is not None:
            try:
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the poll
            except OSError as error:
                self._on_error("control", error)
        for reply in list(self._replies):
            reply.cancel()

    def keep(self, reply: Reply) -> None:
        """Keep the connection of a running operation for an answer after the detach."""
        self._kept.add(reply)

    def kept(self) -> list[socket.socket]:
        """Return the connections to answer after the detach."""
        return [reply.hand_over() for reply in self._kept]

    def close(self) -> None:
        """Stop listening. Running answers are finished; in a forked child their connections are closed too."""
        self._stopping = True
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        if os.getpid() != self._pid:
            for reply in [*self._replies, *self._kept]:
                reply.close()
            self._replies.clear()
            self._kept.clear()
            own_threads.in_child()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return  # the client has left
        reply = Reply(connection)
        refusal = _refusal(connection)
        if refusal is None and len(self._replies) >= MAX_CONNECTIONS:
            refusal = "too many requests at once", "try again in a moment"
        if refusal is not None:
            self._answer_error(reply, *refusal)
            reply.close()
            return
        self._replies.add(reply)
        switch_interval.hurry()
        try:
            own_threads.start(lambda: self._handle(reply))
        except RuntimeError as error:
            remedy = "raise its limit of threads (ulimit -u) or of address space (ulimit -v)"
            self._answer_error(reply, f"the target cannot start a thread: {error}", remedy)
            self._replies.discard(reply)
            reply.close()

    def _handle(self, reply: Reply) -> None:
        try:
            self._answer(reply)
        except Gone:
            pass  # the client has left
        except BaseException as error:
            self._on_error("control", error)
        finally:
            self._replies.discard(reply)
            self._rest()
            if reply not in self._kept:
                reply.close()

    def _rest(self) -> None:
        if not self._replies and not self._stopping:
            switch_interval.rest()

    def _answer(self, reply: Reply) -> None:
        try:
            request = reply.read_line(MAX_REQUEST_BYTES, REQUEST_TIMEOUT_S)
        except ValueError as error:
            self._answer_error(reply, f"bad request: {error}", 'send one JSON object a line, such as {"op": "hello"}')
            return
        name = request.get("op")
        operation = self._operations.get(name) if isinstance(name, str) else None
        if operation is None:
            known = ", ".join(sorted(self._operations))
            self._answer_error(reply, f"unknown operation {name!r}", f"use one of: {known}")
            return
        if self._allowed is not None and (name not in self._allowed or any(map(request.get, _MORE_THAN_READING))):
            told = f"{name} is not permitted: this target is read-only (PROBE_READONLY)"
            hint = "use SQL, stacks and tables, or start the job without PROBE_READONLY"
            self._answer_error(reply, told, hint, _NO)
            return
        try:
            answer = operation(request, reply)
        except Gone:
            raise
        except Exception as error:  # the border: the client gets the error, probe.errors a row
            self._on_error(f"control.{name}", error)
            told = f"the recorder failed at {name}: {type(error).__name__}: {error}"
            self._answer_error(reply, told, "see the traceback: SELECT * FROM probe.errors")
            return
        if reply not in self._kept:
            reply.send({**(answer or {}), "done": True})

    def _answer_error(self, reply: Reply, message: str, hint: str, kind: str = "") -> None:
        with suppress(Gone):
            reply.send({"error": {"message": message, "hint": hint, "kind": kind}, "done": True})


def _refusal(connection: socket.socket) -> tuple[str, str] | None:
    """Return error and hint for a peer that is neither the target's user nor root."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid in (0, os.getuid(), os.geteuid()):
        return None
    return f"this target belongs to uid {os.getuid()}, not to uid {uid}", f"run as uid {os.getuid()} or root"
