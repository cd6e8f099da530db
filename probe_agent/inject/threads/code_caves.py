"""Where the stub can lie: the zero bytes behind the code of a library, up to the end of its last page.

Nothing is allocated in the target. Words behind a library's data say how far whoever was sent to a place has come, so
that nothing is written over code that somebody may still run:

    free      nobody was sent, or everything has run and all threads have left
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
from .mailbox import ARMED, DONE, ENTERED, FREE, NUM_BYTES, PENDING_CALL, Said, Words
from .tracee import Module, ThreadLook, Tracee

__all__ = ["SIZE", "CodeCave", "find_caves", "find_free", "is_queued"]

SIZE = machine.SIZE
_ALIGN = 16
#: Enough that some can be in use, few enough to find among 2,000 mapped modules.
_NUM_PLACES, _NUM_WORDS_IN_ONE, _NUM_WITH_WORDS = 12, 6, 4
#: How far words may be from their place: an instruction of the stub has 32 bits for that.
_REACH = 1 << 30
#: Libraries that every Python has; the interpreter itself comes first.
_LIBRARIES = ("libpython", "python", "libc.so", "libc-", "libz.so", "libm.so", "libm-", "libpthread", "libcrypto")
#: The dynamic loader allocates from the bytes behind its own data, before malloc is there.
_NEVER = ("ld-", "ld.")
#: A running thread that has run for so long since its last store here has left.
_LEFT_AFTER_NS = 2_000_000
#: The frame of a signal is this near to where its handler sleeps, or the place stays in use.
_STACK_SEARCHED = 256 * 1024
_TO_LEAVE_S = 0.1


@dataclass(frozen=True)
class CodeCave:
    """`SIZE` unused bytes at `code`, and the words that belong to it."""

    code: int
    words: Words

    def said(self, process: Tracee) -> Said:
        """What the words say now."""
        return self.words.read(process.read_memory(self.words.at, NUM_BYTES))

    def clean_when_left(self, process: Tracee, timeout_s: float) -> None:
        """Leave zeros, as it was found, once nobody can be in it. Until then it stays, and the next attach looks."""
        if self._is_left(process, timeout_s):
            process.write_memory(self.code, bytes(SIZE))
            process.write_memory(self.words.at, bytes(NUM_BYTES))

    def is_free(self, process: Tracee, timeout_s: float = 0.0) -> bool:
        """Whether nobody is or will be in it."""
        return self.said(process).state == FREE or self._is_left(process, timeout_s)

    def _is_left(self, process: Tracee, timeout_s: float) -> bool:
        """Whether all that was to run here has run, and the threads that ran it have left.

        The words are read anew around each look at the thread. One that was sent and has not come yet may come at any
        moment, and then sleep elsewhere in a call that was made from here: it is to find this place as it was.
        """
        deadline = monotonic() + timeout_s
        said = self.said(process)
        first = _look(process, said.tid)
        while _is_over(said):
            has_ended = not said.new_thread or process.outer(said.new_thread) is None
            has_left = has_ended and (first is None or self._is_elsewhere(process, said, first))
            now = self.said(process)
            if now == said:
                if has_left or monotonic() >= deadline:
                    return has_left
                sleep(0.001)
            else:
                said, first = now, _look(process, now.tid)
        return False

    def _is_elsewhere(self, process: Tracee, said: Said, first: ThreadLook) -> bool:
        """Whether the thread that was sent is in no instruction of this place, nor comes back to one.

        After its last store here a running thread leaves with the next few instructions. One of which nothing is known
        but that an attacher meant to send it has left when it sleeps and its stack does not lead here.
        """
        now = _look(process, said.tid)
        if now is None:
            return True
        asleep = now.state == "S" and now.at is not None and not self.code <= now.at < self.code + SIZE
        if said.state == ARMED:
            return asleep and not self._is_on_stack(process, now.stack)
        return asleep or now.run_ns - first.run_ns > _LEFT_AFTER_NS

    def _is_on_stack(self, process: Tracee, stack: int) -> bool:
        """Whether an address in this place is on the stack, as in the frame of a signal that came before the stub."""
        around = next((mapping for mapping in process.maps_now() if mapping.start <= stack < mapping.end), None)
        if around is None:
            return True
        size = min(around.end - stack, _STACK_SEARCHED) & ~7
        words = struct.unpack(f"<{size // 8}Q", process.read_memory(stack, size))
        return any(self.code <= word < self.code + SIZE for word in words)


def _is_over(said: Said) -> bool:
    """Whether, by its words, nothing in the place waits for the interpreter or is under way."""
    if said.state == ARMED:  # by an attacher that was killed: it may never have sent the thread
        return True
    return said.state == DONE and bool(said.result or said.ran)


def _look(process: Tracee, inner_tid: int) -> ThreadLook | None:
    """What a thread of the process does, by the number that the process has for it; None when it has ended."""
    tid = process.outer(inner_tid)
    try:
        return None if tid is None else process.look(tid)
    except (FileNotFoundError, ProcessLookupError):
        return None


def find_caves(process: Tracee) -> list[CodeCave]:
    """All places of the process that we would use, in the order in which we would, with words for each."""
    codes = list(islice((at for module in _modules(process) for at in _code_in(process, module)), _NUM_PLACES))
    groups = islice((found for module in _modules(process) if (found := _words_in(process, module))), _NUM_WITH_WORDS)
    unused: list[Words] = []
    used: dict[int, Words] = {}
    for words in (words for group in groups for words in group):
        data = process.read_memory(words.at, NUM_BYTES)
        if not any(data):
            unused.append(words)
        elif words.read(data).code in codes:
            used[words.read(data).code] = words
        # Else these bytes are what follows in the library's file: nobody's, but not ours to read as words.
    places = []
    for code in codes:
        chosen = used.get(code) or next((words for words in unused if abs(words.at - code) < _REACH), None)
        if chosen is not None:
            places.append(CodeCave(code, chosen))
            if chosen in unused:
                unused.remove(chosen)
    return places


def _modules(process: Tracee) -> Iterator[Module]:
    """Those that we would use; a job may have thousands, so none is read that is not asked for."""
    for path in sorted(process.code_files, key=_preference):
        if not path.rpartition("/")[2].startswith(_NEVER) and (module := process.module(path)) is not None:
            yield module


def find_free(process: Tracee, places: list[CodeCave]) -> CodeCave:
    """The first free one; what earlier attaches have left, if need be, once nobody is in it any more."""
    for timeout_s in (0.0, _TO_LEAVE_S):
        for place in places:
            if place.is_free(process, timeout_s):
                return place
    raise AttachRefused(
        f"cannot attach to pid {process.pid}: none of its libraries has {SIZE} unused bytes of code",
        "an earlier attach that has not come about yet may hold them; try again when the target runs on",
    )


def is_queued(process: Tracee, places: list[CodeCave], way: int) -> bool:
    """Whether code waits for the interpreter this way: begun by an attach that gave up waiting, or was killed."""
    return any(_waits(process, said) for place in places if (said := place.said(process)).way == way)


def _waits(process: Tracee, said: Said) -> bool:
    if said.ran or said.state not in (ENTERED, DONE) or (said.state == DONE and said.result != 0):
        return False
    # A forked child has its parent's words, but none of its threads.
    if said.way == PENDING_CALL or not said.new_thread:
        return process.outer(said.tid) is not None
    return process.outer(said.new_thread) is not None


def _preference(path: str) -> tuple[int, str]:
    name = path.rpartition("/")[2]
    ranks = [rank for rank, prefix in enumerate(_LIBRARIES) if name.startswith(prefix)]
    return (ranks[0] if ranks else len(_LIBRARIES), name)


def _code_in(process: Tracee, module: Module) -> list[int]:
    """Where unused bytes behind its code begin, if there are enough."""
    for segment in module.elf.segments:
        end, free = segment.padding
        if segment.executable and free >= SIZE + _ALIGN:
            at = _aligned(module.bias + end)
            if _is_mapped(process, at, SIZE, "x"):
                return [at]
    return []


def _words_in(process: Tracee, module: Module) -> list[Words]:
    """Words behind its data."""
    step = -(-NUM_BYTES // _ALIGN) * _ALIGN
    for segment in module.elf.segments:
        end, free = segment.padding
        count = min(_NUM_WORDS_IN_ONE, (free - _ALIGN) // step)
        at = _aligned(module.bias + end)
        if segment.writable and not segment.executable and count > 0 and _is_mapped(process, at, count * step, "w"):
            return [Words(at + number * step) for number in range(count)]
    return []


def _aligned(address: int) -> int:
    return -(-address // _ALIGN) * _ALIGN


def _is_mapped(process: Tracee, address: int, size: int, flag: str) -> bool:
    return any(m.start <= address and address + size <= m.end and flag in m.flags for m in process.maps)
