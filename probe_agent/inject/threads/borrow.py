"""Sends one thread of the target to a place, where it makes one call and goes back to what it did.

Runs in the attaching process, on a thread of its own (see ptrace.py). The target's thread stands still for some
0.1 ms; all that takes longer happens before it is stopped.
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

#: A thread that is at a point where it must not be borrowed has mostly left it a moment later.
_TRIES, _BETWEEN_TRIES_S = 30, 0.002
#: For the call itself, which takes microseconds. One that takes longer waits for a lock, and is left to.
_CALL_S = 0.1
_ALIGN = 16
_STACK_NEEDED = 32 * 1024
_STACK_SEARCHED = 512
_RSEQ_CS_AT = 8
_RSEQ_CS = struct.Struct("<IIQQQ")
_QUEUE_FULL = -1


@dataclass(frozen=True)
class Sent:
    """A thread that was sent to a place, how long it stood still for that, and what its call returned."""

    way: int
    place: CodeCave
    stopped_s: float
    result: int | None

    @property
    def complaint(self) -> str:
        """What the call said, unless it worked or still runs."""
        if not self.result:
            return ""
        if self.result == NOT_INITIALISED:
            return "its interpreter is not there yet, or not any more"
        if self.way == PENDING_CALL and self.result == _QUEUE_FULL:
            return "its interpreter takes no more pending calls"
        return f"it cannot start a thread (error {self.result}): look at its limits on threads and memory"


def send(process: Tracee, tid: int, way: int, place: CodeCave, code: bytes) -> Sent:
    """Have thread `tid` bring the Python `code` to the interpreter. Raises AttachRefused; then nothing was done."""
    written = _written(process, way, place, code)
    forbidden = [(place.code, place.code + machine.SIZE)]
    if way == PENDING_CALL:
        forbidden += symbols.spans(process, symbols.PENDING_QUEUE)
    stopped_s = on_own_thread(lambda: _repeat(lambda: _redirect(process, tid, way, place, written, forbidden), tid))
    return Sent(way, place, stopped_s, _result(process, place))


@dataclass(frozen=True)
class _Written:
    """What is put into the place: the body that the interpreter or a new thread runs, its text, and the stub."""

    bytes_at: dict[int, bytes]
    stub_at: int
    stub_size: int


def _written(process: Tracee, way: int, place: CodeCave, text: bytes) -> _Written:
    functions = symbols.addresses(process, symbols.INTERPRETER + symbols.PTHREAD)
    text_at = place.code + machine.SIZE - len(text)
    call: tuple[int, tuple[int, ...]]
    if way == PENDING_CALL:
        body = machine.pending_body(place.code, functions, text_at, place.words)
        call = functions["Py_AddPendingCall"], (place.code, 0)
    else:
        body = machine.thread_body(place.code, functions, text_at, place.words)
        call = functions["pthread_create"], (place.words.handle, 0, place.code, 0)
    stub_at = place.code + -(-len(body) // _ALIGN) * _ALIGN
    stub = machine.stub(stub_at, functions["Py_IsInitialized"], *call, place.words)
    if stub_at + len(stub) > text_at:
        raise AttachRefused(
            f"the code for the target does not fit into {machine.SIZE} bytes", "this is a fault of Probe"
        )
    return _Written({place.code: body, stub_at: stub, text_at: text}, stub_at, len(stub))


def _repeat(once: Callable[[], float], tid: int) -> float:
    reason = ""
    for _ in range(_TRIES):
        try:
            return once()
        except Busy as busy:
            reason = str(busy)
            sleep(_BETWEEN_TRIES_S)
    raise AttachRefused(f"thread {tid} cannot be borrowed: {reason}", "try again; probe doctor PID shows all threads")


def _redirect(
    process: Tracee,
    tid: int,
    way: int,
    place: CodeCave,
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
        thread.write(place.words.at, place.words.armed(inner, way, place.code))
        machine.redirect(thread, how, written.stub_at)
        # From here on the thread needs nobody: it saves itself, calls, restores itself and goes on.
        stopped_s = thread.stopped_s
    return stopped_s


def _check_asleep(look: ThreadLook) -> None:
    """Since we looked it may have woken up, and have taken a lock that pthread_create needs: malloc's, for example."""
    if machine.suits(look) is None:
        raise Busy("it has woken up")


def _check_stack(stack: int, mappings: list[Mapping]) -> None:
    """A signal handler or a coroutine may run on a small stack of its own: there is no room for us."""
    around = next((mapping for mapping in mappings if mapping.start <= stack < mapping.end), None)
    if around is None or "w" not in around.flags or around.path == "[heap]":
        raise Busy("it runs on a stack of its own making")
    if around.path != "[stack]" and stack - around.start < _STACK_NEEDED:
        raise Busy("its stack is nearly full")


def _check_code(thread: Seized, at: int, stack: int, forbidden: list[tuple[int, int]]) -> None:
    """In these functions it may hold the very lock that our call needs; or it is still in a place of ours."""
    data = thread.read(stack, _STACK_SEARCHED)
    words = struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8])
    if any(start <= word < end for word in (at, *words) for start, end in forbidden):
        raise Busy("it is handling pending calls of the interpreter")


def _check_rseq(thread: Seized, at: int) -> None:
    """Inside a restartable sequence (tcmalloc has some) the kernel must see where the thread really was."""
    area = thread.rseq_area()
    sequence = int.from_bytes(thread.read(area + _RSEQ_CS_AT, 8), "little") if area else 0
    if sequence:
        _, _, start, length, _ = _RSEQ_CS.unpack(thread.read(sequence, _RSEQ_CS.size))
        if start <= at < start + length:
            raise Busy("it is in a restartable sequence")


def _check_signals(process: Tracee, tid: int) -> None:
    """A signal that waits must interrupt the system call, not our stub: then the call ends as its caller expects."""
    status = process.status(tid)
    waiting = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
    if waiting & ~int(status["SigBlk"], 16) & ~int(status["SigIgn"], 16):
        raise Busy("a signal is on its way to it")


def _result(process: Tracee, place: CodeCave) -> int | None:
    deadline = monotonic() + _CALL_S
    while (said := place.said(process)).state != DONE:
        if monotonic() > deadline:
            return None
        sleep(0.0002)
    return said.result
