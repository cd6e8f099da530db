"""Code caves: zero bytes behind the code of a library, up to the end of its last page, where the stub can lie.

Nothing is allocated in the target. A mailbox behind a library's data says how far the thread that was sent to a cave
is, so that code that may still run is never overwritten:

    free      no thread was sent, or everything has run and all threads have left
    queued    the code waits for the interpreter: it must not be queued a second time

Runs in the attaching process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from time import monotonic, sleep

from probe_agent.errors import AttachRefused

from .machine import machine
from .mailbox import ARMED, DONE, ENTERED, FREE, NUM_BYTES, PENDING_CALL, Mailbox, MailboxState
from .tracee import Module, ThreadLook, Tracee

__all__ = ["SIZE", "CodeCave", "find_caves", "find_free", "is_queued"]

SIZE = machine.SIZE
_ALIGN = 16
#: Enough that some may be in use, few enough to find among 2,000 mapped modules.
_NUM_CAVES, _NUM_MAILBOXES_IN_ONE, _NUM_WITH_MAILBOXES = 12, 6, 4
#: How far a mailbox may be from its cave: an instruction of the stub has 32 bits for the distance.
_REACH = 1 << 30
#: Libraries that every Python has, the interpreter first.
_LIBRARIES = ("libpython", "python", "libc.so", "libc-", "libz.so", "libm.so", "libm-", "libpthread", "libcrypto")
#: The dynamic loader allocates from the bytes behind its own data until malloc is loaded.
_NEVER = ("ld-", "ld.")
#: A running thread that has run for this long since its last store has left.
_LEFT_AFTER_NS = 2_000_000
#: A signal's frame that is further than this from where its handler sleeps is not found, and the cave stays in use.
_STACK_SEARCHED = 256 * 1024
_TO_LEAVE_S = 0.1


@dataclass(frozen=True)
class CodeCave:
    """`SIZE` unused bytes at `code`, and their mailbox."""

    code: int
    mailbox: Mailbox

    def read(self, process: Tracee) -> MailboxState:
        """Return what its mailbox says now."""
        return self.mailbox.read(process.read_memory(self.mailbox.at, NUM_BYTES))

    def clean_when_left(self, process: Tracee, timeout_s: float) -> None:
        """Fill it with zeros again once no thread can be in it; if that takes longer, the next attach does."""
        if self._is_left(process, timeout_s):
            process.write_memory(self.code, bytes(SIZE))
            process.write_memory(self.mailbox.at, bytes(NUM_BYTES))

    def is_free(self, process: Tracee, timeout_s: float = 0.0) -> bool:
        """Return whether no thread is or will be in it."""
        return self.read(process).state == FREE or self._is_left(process, timeout_s)

    def _is_left(self, process: Tracee, timeout_s: float) -> bool:
        """Return whether everything has run here, and the threads that ran it have left.

        The mailbox is read again around each look at the thread. A thread that was sent may arrive at any moment, and
        then sleep elsewhere in a call that was made from here: it has to find the cave unchanged.
        """
        deadline = monotonic() + timeout_s
        seen = self.read(process)
        first = _look(process, seen.tid)
        while _is_over(seen):
            has_ended = not seen.new_thread or process.outer(seen.new_thread) is None
            has_left = has_ended and (first is None or self._is_elsewhere(process, seen, first))
            now = self.read(process)
            if now == seen:
                if has_left or monotonic() >= deadline:
                    return has_left
                sleep(0.001)
            else:
                seen, first = now, _look(process, now.tid)
        return False

    def _is_elsewhere(self, process: Tracee, seen: MailboxState, first: ThreadLook) -> bool:
        """Return whether the thread that was sent runs no instruction of this cave and will not return to one.

        A running thread leaves with the next few instructions after its last store. If an attach was killed before it
        sent the thread for certain, the thread has left if it sleeps and its stack does not lead here.
        """
        now = _look(process, seen.tid)
        if now is None:
            return True
        asleep = now.state == "S" and now.at is not None and not self.code <= now.at < self.code + SIZE
        if seen.state == ARMED:
            return asleep and not self._is_on_stack(process, now.stack)
        return asleep or now.run_ns - first.run_ns > _LEFT_AFTER_NS

    def _is_on_stack(self, process: Tracee, stack: int) -> bool:
        """Return whether an address of this cave is on the stack, as in the frame of a signal before the stub."""
        around = next((mapping for mapping in process.maps_now() if mapping.start <= stack < mapping.end), None)
        if around is None:
            return True
        size = min(around.end - stack, _STACK_SEARCHED) & ~7
        stack_words = struct.unpack(f"<{size // 8}Q", process.read_memory(stack, size))
        return any(self.code <= word < self.code + SIZE for word in stack_words)


def _is_over(seen: MailboxState) -> bool:
    """Return whether nothing in the cave waits for the interpreter or is running, as its mailbox says."""
    if seen.state == ARMED:  # by an attach that was killed: it may not have sent the thread
        return True
    return seen.state == DONE and bool(seen.result or seen.ran)


def _look(process: Tracee, inner_tid: int) -> ThreadLook | None:
    """Return what a thread does, by the number that the target sees; None if it has ended."""
    tid = process.outer(inner_tid)
    try:
        return None if tid is None else process.look(tid)
    except (FileNotFoundError, ProcessLookupError):
        return None


def find_caves(process: Tracee) -> list[CodeCave]:
    """Return the caves of the process, each with a mailbox, in the order of preference."""
    codes = list(islice((at for module in _modules(process) for at in _code_in(process, module)), _NUM_CAVES))
    groups = islice(
        (found for module in _modules(process) if (found := _mailboxes_in(process, module))), _NUM_WITH_MAILBOXES
    )
    unused: list[Mailbox] = []
    used: dict[int, Mailbox] = {}
    for mailbox in (mailbox for group in groups for mailbox in group):
        data = process.read_memory(mailbox.at, NUM_BYTES)
        if not any(data):
            unused.append(mailbox)
        elif mailbox.read(data).code in codes:
            used[mailbox.read(data).code] = mailbox
        # Else these bytes are what follows in the library's file, and no mailbox.
    caves = []
    for code in codes:
        chosen = used.get(code) or next((mailbox for mailbox in unused if abs(mailbox.at - code) < _REACH), None)
        if chosen is not None:
            caves.append(CodeCave(code, chosen))
            if chosen in unused:
                unused.remove(chosen)
    return caves


def _modules(process: Tracee) -> Iterator[Module]:
    """Modules in the order of preference, read one by one: a job may have thousands."""
    for path in sorted(process.code_files, key=_preference):
        if not path.rpartition("/")[2].startswith(_NEVER) and (module := process.module(path)) is not None:
            yield module


def find_free(process: Tracee, caves: list[CodeCave]) -> CodeCave:
    """Return the first free cave; if none is, wait for threads that earlier attaches have sent to leave one."""
    for timeout_s in (0.0, _TO_LEAVE_S):
        for cave in caves:
            if cave.is_free(process, timeout_s):
                return cave
    raise AttachRefused(
        f"cannot attach to pid {process.pid}: none of its libraries has {SIZE} unused bytes of code",
        "try again when the target runs on: an earlier attach that still waits may hold them",
    )


def is_queued(process: Tracee, caves: list[CodeCave], way: int) -> bool:
    """Return whether code of an earlier attach, which gave up waiting or was killed, waits for the interpreter."""
    return any(_waits(process, seen) for cave in caves if (seen := cave.read(process)).way == way)


def _waits(process: Tracee, seen: MailboxState) -> bool:
    if seen.ran or seen.state not in (ENTERED, DONE) or (seen.state == DONE and seen.result != 0):
        return False
    # A forked child has its parent's mailboxes, but none of its threads.
    if seen.way == PENDING_CALL or not seen.new_thread:
        return process.outer(seen.tid) is not None
    return process.outer(seen.new_thread) is not None


def _preference(path: str) -> tuple[int, str]:
    name = path.rpartition("/")[2]
    ranks = [rank for rank, prefix in enumerate(_LIBRARIES) if name.startswith(prefix)]
    return (ranks[0] if ranks else len(_LIBRARIES), name)


def _code_in(process: Tracee, module: Module) -> list[int]:
    """Return where unused bytes behind its code begin, if there are enough."""
    for segment in module.elf.segments:
        end, free = segment.padding
        if segment.executable and free >= SIZE + _ALIGN:
            at = _aligned(module.bias + end)
            if _is_mapped(process, at, SIZE, "x"):
                return [at]
    return []


def _mailboxes_in(process: Tracee, module: Module) -> list[Mailbox]:
    """Return mailboxes behind its data."""
    step = -(-NUM_BYTES // _ALIGN) * _ALIGN
    for segment in module.elf.segments:
        end, free = segment.padding
        count = min(_NUM_MAILBOXES_IN_ONE, (free - _ALIGN) // step)
        at = _aligned(module.bias + end)
        if segment.writable and not segment.executable and count > 0 and _is_mapped(process, at, count * step, "w"):
            return [Mailbox(at + number * step) for number in range(count)]
    return []


def _aligned(address: int) -> int:
    return -(-address // _ALIGN) * _ALIGN


def _is_mapped(process: Tracee, address: int, size: int, flag: str) -> bool:
    return any(m.start <= address and address + size <= m.end and flag in m.flags for m in process.maps)
