"""Borrowing of one thread of the target: it runs the stub in a code cave, which makes one call and returns.

Runs in the attaching process, on a thread of its own (see `ptrace`). The target's thread stands still for about 0.1 ms;
whatever takes longer happens before it is stopped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep

from probe_agent.errors import AttachRefused

from . import symbols
from .code_caves import CodeCave
from .machine import machine
from .mailbox import DONE, NOT_INITIALISED, PENDING_CALL, QUIET_THREAD
from .ptrace import Busy, Seized, on_own_thread, seized
from .tracee import Mapping, ThreadLook, Tracee

__all__ = ["Sent", "send"]

#: A thread at a point where it must not be borrowed has usually left it a moment later.
_TRIES, _BETWEEN_TRIES_S = 30, 0.002
#: For the call itself, which takes microseconds. One that takes longer waits for a lock, and goes on later.
_CALL_S = 0.1
_ALIGN = 16
_STACK_NEEDED = 32 * 1024
_STACK_SEARCHED = 512
_RSEQ_CS_AT = 8
_RSEQ_CS = struct.Struct("<IIQQQ")
_QUEUE_FULL = -1


@dataclass(frozen=True)
class Sent:
    """A thread that was sent to a cave, how long it stood still, and what its call returned."""

    way: int
    cave: CodeCave
    stopped_s: float
    result: int | None

    @property
    def complaint(self) -> str:
        """Why the call failed; empty if it worked or still runs."""
        if not self.result:
            return ""
        if self.result == NOT_INITIALISED:
            return "its interpreter has not started yet, or is gone"
        if self.way == PENDING_CALL and self.result == _QUEUE_FULL:
            return "its interpreter accepts no more pending calls"
        return f"it cannot start a thread (error {self.result}): check its limits on threads and memory"


def send(process: Tracee, tid: int, way: int, cave: CodeCave, code: bytes) -> Sent:
    """Make thread `tid` hand the Python `code` to the interpreter. Raises AttachRefused; then nothing was done."""
    written = _written(process, way, cave, code)
    forbidden = [(cave.code, cave.code + machine.SIZE)]
    if way == PENDING_CALL:
        forbidden += symbols.spans(process, symbols.PENDING_QUEUE)
    stopped_s = on_own_thread(lambda: _repeat(lambda: _redirect(process, tid, way, cave, written, forbidden), tid))
    return Sent(way, cave, stopped_s, _result(process, cave))


@dataclass(frozen=True)
class _Written:
    """Contents of the cave: the body that the interpreter or a new thread runs, its text, and the stub."""

    bytes_at: dict[int, bytes]
    stub_at: int
    stub_size: int


def _written(process: Tracee, way: int, cave: CodeCave, text: bytes) -> _Written:
    functions = symbols.addresses(process, symbols.INTERPRETER + symbols.PTHREAD)
    text_at = cave.code + machine.SIZE - len(text)
    call: tuple[int, tuple[int, ...]]
    if way == PENDING_CALL:
        body = machine.pending_body(cave.code, functions, text_at, cave.mailbox)
        call = functions["Py_AddPendingCall"], (cave.code, 0)
    else:
        body = machine.thread_body(cave.code, functions, text_at, cave.mailbox)
        call = functions["pthread_create"], (cave.mailbox.handle, 0, cave.code, 0)
    stub_at = cave.code + -(-len(body) // _ALIGN) * _ALIGN
    stub = machine.stub(stub_at, functions["Py_IsInitialized"], *call, cave.mailbox)
    if stub_at + len(stub) > text_at:
        raise AttachRefused(
            f"the code for the target does not fit into {machine.SIZE} bytes", "report this as a bug of Probe"
        )
    return _Written({cave.code: body, stub_at: stub, text_at: text}, stub_at, len(stub))


def _repeat(once: Callable[[], float], tid: int) -> float:
    reason = ""
    for _ in range(_TRIES):
        try:
            return once()
        except Busy as busy:
            reason = str(busy)
            sleep(_BETWEEN_TRIES_S)
    raise AttachRefused(f"cannot borrow thread {tid}: {reason}", "try again; see all threads with probe doctor PID")


def _redirect(
    process: Tracee,
    tid: int,
    way: int,
    cave: CodeCave,
    written: _Written,
    forbidden: list[tuple[int, int]],
) -> float:
    inner, mappings = process.inner(tid), process.maps_now()
    with seized(tid) as thread:
        if process.has_ended():
            raise ProcessLookupError(process.pid)
        for at, data in written.bytes_at.items():
            thread.write(at, data)
        thread.stop()
        how = machine.interrupted(thread)
        if way == QUIET_THREAD:
            _check_asleep(ThreadLook("S", how.syscall, how.arguments, how.at, 0, 0))
        _check_stack(how.stack, mappings)
        _check_code(thread, how.at, how.stack, forbidden)
        _check_rseq(thread, how.at)
        if how.restarts:
            _check_signals(process, tid)
        thread.write(*machine.returns_to(written.stub_at, written.stub_size, how.at))
        thread.write(cave.mailbox.at, cave.mailbox.armed(inner, way, cave.code))
        machine.redirect(thread, how, written.stub_at)
        # From here on the thread needs no help: it saves its state, calls, restores its state and goes on.
        stopped_s = thread.stopped_s
    return stopped_s


def _check_asleep(look: ThreadLook) -> None:
    """Raise Busy if it has woken up: it may hold a lock that pthread_create needs, such as that of malloc."""
    if machine.suits(look) is None:
        raise Busy("it has woken up")


def _check_stack(stack: int, mappings: list[Mapping]) -> None:
    """Raise Busy if it runs on a small stack, such as that of a signal handler or a coroutine."""
    around = next((mapping for mapping in mappings if mapping.start <= stack < mapping.end), None)
    if around is None or "w" not in around.flags or around.path == "[heap]":
        raise Busy("it runs on a stack that the program has allocated")
    if around.path != "[stack]" and stack - around.start < _STACK_NEEDED:
        raise Busy("its stack is nearly full")


def _check_code(thread: Seized, at: int, stack: int, forbidden: list[tuple[int, int]]) -> None:
    """Raise Busy in functions that hold the lock that our call needs, and in a cave of ours."""
    data = thread.read(stack, _STACK_SEARCHED)
    stack_words = struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8])
    if any(start <= word < end for word in (at, *stack_words) for start, end in forbidden):
        raise Busy("it is handling pending calls of the interpreter")


def _check_rseq(thread: Seized, at: int) -> None:
    """Raise Busy inside a restartable sequence (tcmalloc has some): the kernel must see where the thread is."""
    area = thread.rseq_area()
    sequence = int.from_bytes(thread.read(area + _RSEQ_CS_AT, 8), "little") if area else 0
    if sequence:
        _, _, start, length, _ = _RSEQ_CS.unpack(thread.read(sequence, _RSEQ_CS.size))
        if start <= at < start + length:
            raise Busy("it is in a restartable sequence")


def _check_signals(process: Tracee, tid: int) -> None:
    """Raise Busy if a signal is pending: it must interrupt the system call, not our stub."""
    status = process.status(tid)
    waiting = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
    if waiting & ~int(status["SigBlk"], 16) & ~int(status["SigIgn"], 16):
        raise Busy("a signal is on its way to it")


def _result(process: Tracee, cave: CodeCave) -> int | None:
    deadline = monotonic() + _CALL_S
    while (seen := cave.read(process)).state != DONE:
        if monotonic() > deadline:
            return None
        sleep(0.0002)
    return seen.result
