"""Machine code that a borrowed thread runs on aarch64. Tested in an emulator only, never on a machine.

As on x86-64 the thread saves its own state and needs nobody afterwards. Two things are different:

- No register is free to jump back with, so the last instruction is a direct branch, which reaches 128 MiB. A thread
  that stands further away from the place is asked again later.
- The kernel has set the thread back to the beginning of its system call before we see it, and does not tell whether
  it would go on with the time that is left. So threads in waits whose time is counted from the beginning are never
  borrowed: relative nanosleep, and futex with a relative time.

The scalable registers (SVE) are saved where the machine has them. A machine with SME is refused (preflight.py).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .elf import AARCH64, auxiliary
from .mailbox import DONE, ENTERED, NOT_INITIALISED, Mailbox
from .ptrace import NT_PRSTATUS, Busy, Seized
from .tracee import ThreadLook

__all__ = [
    "MACHINE",
    "SIZE",
    "Interrupted",
    "has_sve",
    "interrupted",
    "pending_body",
    "redirect",
    "returns_to",
    "stub",
    "suits",
    "thread_body",
]

MACHINE = AARCH64
SIZE = 2048
#: struct user_pt_regs of the kernel: x0 to x30, sp, pc, pstate.
_REGISTERS = struct.Struct("<34Q")
_X0, _X1, _X2, _X3, _X8, _SP, _PC, _PSTATE = 0, 1, 2, 3, 8, 31, 32, 33
_PSTATE_32_BIT = 1 << 4
_AT_HWCAP, _HAS_SVE = 16, 1 << 22
_SVC = 0xD4000001
_REACH = 1 << 27
#: read, pselect6, ppoll, waitid, restart_syscall, wait4, futex_waitv; and epoll_pwait, flock, write, writev,
#: rt_sigtimedwait, accept, sendto, recvfrom, sendmsg, recvmsg, accept4
_EXACT_WAITS = frozenset({63, 72, 73, 95, 128, 260, 449})
_OTHER_WAITS = frozenset({22, 32, 64, 66, 137, 202, 206, 207, 211, 212, 242})
_FUTEX, _NANOSLEEP, _CLOCK_NANOSLEEP = 98, 101, 115
_FUTEX_WAIT, _FUTEX_WAIT_BITSET, _FUTEX_COMMAND = 0, 9, 0x7F
_LOCKED_AND_WAITED_FOR = 2
_TIMER_ABSTIME = 1
_GETTID = 178

_STACK, _ZERO = 31, 31
_PAIRS = [(number, number + 1) for number in range(0, 30, 2)] + [(30, _ZERO)]
_BTI_JC, _BTI_C, _RET = 0xD50324DF, 0xD503245F, 0xD65F03C0
_MOV_X29_SP, _MOV_SP_X29 = 0x910003FD, 0x910003BF


@dataclass(frozen=True)
class Interrupted:
    """How a thread has to go on: its registers, and where; `restarts` when that is a system call begun anew.

    `syscall` is the system call that it was in, with its arguments; None outside.
    """

    registers: tuple[int, ...]
    at: int
    stack: int
    restarts: bool
    syscall: int | None
    arguments: tuple[int, ...]


def suits(look: ThreadLook) -> int | None:
    """Return how well a sleeping thread can be borrowed: 0 is best, None is never."""
    if look.state != "S" or look.syscall is None:
        return None
    if look.syscall in _EXACT_WAITS:
        return 0
    if look.syscall in _OTHER_WAITS:
        return 1
    return 0 if look.syscall in (_FUTEX, _CLOCK_NANOSLEEP) and _counts_to_an_end(look.syscall, look.arguments) else None


def _counts_to_an_end(syscall: int, arguments: tuple[int, ...]) -> bool:
    """Return whether the call can be restarted without waiting longer: it has no timeout, or an absolute one."""
    if syscall == _CLOCK_NANOSLEEP:
        return bool(arguments[1] & _TIMER_ABSTIME)
    if syscall != _FUTEX:
        return syscall != _NANOSLEEP
    command = arguments[1] & _FUTEX_COMMAND
    if command == _FUTEX_WAIT:
        return arguments[3] == 0 and arguments[2] != _LOCKED_AND_WAITED_FOR
    return command == _FUTEX_WAIT_BITSET


def _code(*instructions: int) -> bytes:
    return struct.pack(f"<{len(instructions)}I", *instructions)


def _load(register: int, value: int) -> bytes:
    """Return movz and three movk, which load a 64-bit value."""
    parts = [(value >> shift) & 0xFFFF for shift in (0, 16, 32, 48)]
    first = 0xD2800000 | parts[0] << 5 | register
    return _code(first, *(0xF2800000 | n << 21 | parts[n] << 5 | register for n in (1, 2, 3)))


def _move(target: int, source: int) -> bytes:
    return _code(0xAA0003E0 | source << 16 | target)


def _call(function: int) -> bytes:
    return _load(16, function) + _code(0xD63F0000 | 16 << 5)  # blr x16


def _store(word: int, register: int) -> bytes:
    return _load(9, word) + _code(0xB9000000 | 9 << 5 | register)  # str w<register>,[x9]


def _set(word: int, value: int) -> bytes:
    return _code(0x52800000 | value << 5 | 10) + _store(word, 10)  # movz w10,#value


def _push(first: int, second: int) -> bytes:
    return _code(0xA9BF0000 | second << 10 | _STACK << 5 | first)


def _pop(first: int, second: int) -> bytes:
    return _code(0xA8C10000 | second << 10 | _STACK << 5 | first)


def _vectors(*, save: bool) -> bytes:
    """Return code that stores all vector registers on the stack, or loads them; it leaves the stack pointer there."""
    if not has_sve():
        pairs = range(0, 32, 2) if save else range(30, -1, -2)
        base = 0xADBF0000 if save else 0xACC10000  # stp q,q,[sp,#-32]! and ldp q,q,[sp],#32
        return _code(*(base | (n + 1) << 10 | _STACK << 5 | n for n in pairs))
    return _scalable(save=save)


def has_sve() -> bool:
    """Return whether this machine has scalable vectors (SVE)."""
    return bool(auxiliary(_AT_HWCAP) & _HAS_SVE)


def _scalable(*, save: bool) -> bytes:
    """p0 to p15 and ffr in the lowest three vector lengths, z0 to z31 above them."""
    z, p = (0xE5804000, 0xE5800000) if save else (0x85804000, 0x85800000)

    def at(base: int, offset: int, register: int) -> int:
        return base | (offset >> 3) << 16 | (offset & 7) << 10 | _STACK << 5 | register

    vectors = [at(z, 3 + number, number) for number in range(32)]
    predicates = [at(p, number, number) for number in range(16)]
    if save:
        room = [0x04205000 | _STACK << 16 | (count & 0x3F) << 5 | _STACK for count in (-32, -3)]  # addvl sp,sp,#
        return _code(*room, *vectors, *predicates, 0x2519F000, at(p, 16, 0))  # rdffr p0.b; str p0
    return _code(at(p, 16, 0), 0x25289000, *predicates, *vectors)  # ldr p0; wrffr p0.b


def stub(at: int, guard: int, function: int, arguments: tuple[int, ...], mailbox: Mailbox) -> bytes:
    """Return the code of the stub at `at`: if guard(), function(*arguments), then back to where the thread came from.

    The last instruction goes on; `returns_to` fills it in.
    """
    code = _code(_BTI_JC) + b"".join(_push(*pair) for pair in _PAIRS)
    code += _set(mailbox.state, ENTERED)
    code += _code(0xD53B4200, 0xD53B4401, 0xD53B4422)  # mrs x0,nzcv; mrs x1,fpcr; mrs x2,fpsr
    code += _push(0, 1) + _push(2, _ZERO) + _code(_MOV_X29_SP)
    code += _vectors(save=True)
    work = b"".join(_load(register, value) for register, value in enumerate(arguments)) + _call(function)
    code += _call(guard) + _code(0x35000000 | 3 << 5)  # cbnz w0, over the next two
    code += _code(0x52800000 | NOT_INITIALISED << 5, 0x14000000 | (1 + len(work) // 4))  # movz w0; b
    code += work + _store(mailbox.result, 0)
    code += _vectors(save=False) + _code(_MOV_SP_X29)
    code += _set(mailbox.state, DONE)
    code += _pop(2, _ZERO) + _pop(0, 1)
    code += _code(0xD51B4200, 0xD51B4401, 0xD51B4422)  # msr nzcv,x0; msr fpcr,x1; msr fpsr,x2
    return code + b"".join(_pop(*pair) for pair in reversed(_PAIRS)) + bytes(4)


def returns_to(stub_at: int, stub_size: int, address: int) -> tuple[int, bytes]:
    """Return where to write what so that the stub ends at `address`. Raises Busy if that is too far."""
    at = stub_at + stub_size - 4
    distance = address - at
    if not -_REACH <= distance < _REACH:
        raise Busy("it runs code that is too far away from every place for ours")
    return at, _code(0x14000000 | (distance >> 2) & 0x3FFFFFF)


def pending_body(at: int, functions: dict[str, int], text: int, mailbox: Mailbox) -> bytes:
    """Return what the interpreter calls at its next safe point: see stub_x86_64.py."""
    code = _code(_BTI_C) + _push(29, 30) + _push(19, 20)
    code += _run(functions, text) + _call(functions["PyErr_Occurred"])
    code += _code(0xF100001F, 0x5A9F03E0)  # cmp x0,#0; csetm w0,ne
    code += _code(0x52800021, 0x4B000021) + _store(mailbox.ran, 1)  # movz w1,#1; sub w1,w1,w0
    return code + _pop(19, 20) + _pop(29, 30) + _code(_RET)


def thread_body(at: int, functions: dict[str, int], text: int, mailbox: Mailbox) -> bytes:
    """Return what a new thread runs: see stub_x86_64.py."""
    code = _code(_BTI_C) + _push(29, 30) + _push(19, 20) + _push(21, 22)
    code += _code(0x52800000 | _GETTID << 5 | _X8, _SVC) + _store(mailbox.new_thread, 0)
    code += _call(functions["pthread_self"]) + _call(functions["pthread_detach"])
    code += _call(functions["PyGILState_Ensure"]) + _move(21, 0)
    code += _run(functions, text)
    code += _call(functions["PyErr_Clear"])
    code += _move(0, 21) + _call(functions["PyGILState_Release"]) + _set(mailbox.ran, 1)
    return code + _load(0, 0) + _pop(21, 22) + _pop(19, 20) + _pop(29, 30) + _code(_RET)


def _run(functions: dict[str, int], text: int) -> bytes:
    """Run the text in a namespace of its own: see stub_x86_64.py."""
    code = _call(functions["PyDict_New"]) + _move(19, 0)
    code += _load(_X0, text) + _load(_X1, 257) + _move(_X2, 19) + _move(_X3, 19)
    code += _call(functions["PyRun_String"]) + _move(20, 0)
    clear = _call(functions["PyErr_Clear"])
    code += _move(0, 19) + _call(functions["PyDict_Size"])
    code += _code(0xAA140000, 0xB5000000 | (1 + len(clear) // 4) << 5) + clear  # orr x0,x0,x20; cbnz x0, over it
    code += _move(0, 19) + _call(functions["Py_DecRef"])
    return code + _move(0, 20) + _call(functions["Py_DecRef"])


def interrupted(thread: Seized) -> Interrupted:
    """Return how the stopped thread has to go on. The kernel has prepared it (do_signal in arch/arm64)."""
    registers = _REGISTERS.unpack(thread.registers(NT_PRSTATUS, _REGISTERS.size))
    if registers[_PSTATE] & _PSTATE_32_BIT:
        raise Busy("it runs 32-bit code")
    if registers[_SP] % 16:
        raise Busy("its stack is not aligned just now")
    at = registers[_PC]
    may_restart = thread.read(at, 4) == _code(_SVC)
    if may_restart and not _counts_to_an_end(registers[_X8], registers[:6]):
        raise Busy("it is in a wait whose length would change")
    is_over = not may_restart and thread.read(at - 4, 4) == _code(_SVC)
    syscall = registers[_X8] if may_restart or is_over else None
    return Interrupted(registers, at, registers[_SP], may_restart, syscall, registers[:6])


def redirect(thread: Seized, how: Interrupted, at: int) -> None:
    """Make the thread go on in the stub."""
    registers = (*how.registers[:_PC], at, *how.registers[_PC + 1 :])
    thread.set_registers(NT_PRSTATUS, _REGISTERS.pack(*registers))
