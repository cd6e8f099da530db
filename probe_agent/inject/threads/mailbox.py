"""A few words in the target that say how far a borrowed thread has come: written by it and by us, read by all.

They lie behind a library's data and are all that an attach knows of an earlier one: whoever attaches after an
attacher that was killed reads here what it left.
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
    "Said",
    "Words",
]

#: Nobody was sent; a thread was sent (we write it); it has come (its first store); it has gone on (its last one).
FREE, ARMED, ENTERED, DONE = 0, 2, 3, 1
#: The result of the call when the interpreter is not there (yet, or any more).
NOT_INITIALISED = 4096
#: The interpreter has run the text, but a signal handler of the job raised meanwhile.
INTERRUPTED = 2
#: How the code gets to the interpreter.
PENDING_CALL, QUIET_THREAD = 1, 2
_LAYOUT = struct.Struct("<IiiIIiQQ")
NUM_BYTES = _LAYOUT.size


@dataclass(frozen=True)
class Said:
    """What the words say."""

    state: int
    #: The thread that was sent, by the number that the target itself sees.
    tid: int
    result: int
    way: int
    #: Whether the interpreter has run the text: 0, 1, or INTERRUPTED.
    ran: int
    #: The thread that was begun (by the number the target sees), as soon as it runs.
    new_thread: int
    handle: int
    #: The place these words belong to.
    code: int


@dataclass(frozen=True)
class Words:
    """Where each word is, for words that begin at `at`."""

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
        """Where pthread_create writes what it always writes."""
        return self.at + 24

    def read(self, data: bytes) -> Said:
        """What the bytes at `at` say."""
        return Said(*_LAYOUT.unpack(data))

    def armed(self, tid: int, way: int, code: int) -> bytes:
        """The bytes that say: thread `tid` has been sent to `code`, this way."""
        return _LAYOUT.pack(ARMED, tid, 0, way, 0, 0, 0, code)
