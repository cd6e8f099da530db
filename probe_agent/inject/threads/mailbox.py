"""Mailbox: a few words of the target's memory that say how far a borrowed thread is, written by it and by us.

It lies behind a library's data and is all that an attach knows of an earlier one, whose process may have been killed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = [
    "ARMED",
    "DONE",
    "ENTERED",
    "FREE",
    "INTERRUPTED",
    "NOT_INITIALISED",
    "NUM_BYTES",
    "PENDING_CALL",
    "QUIET_THREAD",
    "Mailbox",
    "MailboxState",
]

#: No thread was sent; one was sent (we write this); it has arrived (its first store); it has left (its last store).
FREE, ARMED, ENTERED, DONE = 0, 2, 3, 1
#: The result of the call if the interpreter has not started yet, or is gone.
NOT_INITIALISED = 4096
#: The interpreter ran the text, but a signal handler of the job raised in it.
INTERRUPTED = 2
#: How the code gets to the interpreter.
PENDING_CALL, QUIET_THREAD = 1, 2
_LAYOUT = struct.Struct("<IiiIIiQQ")
NUM_BYTES = _LAYOUT.size


@dataclass(frozen=True)
class MailboxState:
    """Contents of a mailbox."""

    state: int
    #: The thread that was sent, by the number that the target sees.
    tid: int
    result: int
    way: int
    #: 1 once the interpreter has run the text, or INTERRUPTED.
    ran: int
    #: The thread that was started, by the number that the target sees, as soon as it runs.
    new_thread: int
    handle: int
    #: The address of the cave that it belongs to.
    code: int


@dataclass(frozen=True)
class Mailbox:
    """A mailbox at `at`: the addresses of its words."""

    at: int

    @property
    def state(self) -> int:
        return self.at

    @property
    def result(self) -> int:
        return self.at + 8

    @property
    def ran(self) -> int:
        return self.at + 16

    @property
    def new_thread(self) -> int:
        return self.at + 20

    @property
    def handle(self) -> int:
        """Where pthread_create writes its pthread_t."""
        return self.at + 24

    def read(self, data: bytes) -> MailboxState:
        """Return what the bytes at `at` say."""
        return MailboxState(*_LAYOUT.unpack(data))

    def armed(self, tid: int, way: int, code: int) -> bytes:
        """Return the bytes for a thread `tid` that is sent to `code`, this way."""
        return _LAYOUT.pack(ARMED, tid, 0, way, 0, 0, 0, code)
