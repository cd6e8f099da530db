"""The machine code that a borrowed thread runs on x86-64: make one call, put everything back, go on.

The thread saves its own state, so nothing depends on the attaching process once the thread runs: it may die.
Tried on thousands of attaches to targets that check a SIMD sum; see docs/how-attach-works.md.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

from .elf import X86_64
from .mailbox import DONE, ENTERED, NOT_INITIALISED, Mailbox
from .ptrace import NT_PRSTATUS, Busy, Seized
from .tracee import ThreadLook

__all__ = [
    "MACHINE",
    "SIZE",
    "Interrupted",
    "interrupted",
    "pending_body",
    "redirect",
    "returns_to",
    "stub",
    "suits",
    "thread_body",
]

MACHINE = X86_64
SIZE = 1536
#: struct user_regs_struct of the kernel.
_REGISTERS = struct.Struct("<27Q")
#: Where the arguments of a system call are: rdi, rsi, rdx, r10, r8, r9.
_ARGUMENTS = (14, 13, 12, 7, 9, 8)
_R10, _RAX, _ORIG_RAX, _RIP, _CS, _RSP = 7, 10, 15, 16, 17, 19
_USER_CODE_64 = 0x33
_AT_MINSIGSTKSZ = 51
_ENOUGH_FOR_AMX = 16 * 1024
_SYSCALL_SIZE = 2
_NO_SYSCALL = (1 << 64) - 1
#: -ERESTARTSYS, -ERESTARTNOINTR, -ERESTARTNOHAND: the kernel would begin the call anew.
_BEGIN_ANEW = (-512, -513, -514)
#: -ERESTART_RESTARTBLOCK: the kernel would go on with the time that is left, by this call.
_GO_ON, _RESTART_SYSCALL = -516, 219
#: epoll_wait and epoll_pwait say -EINTR after any stop, even one without a signal.
_EINTR, _EPOLL_WAITS = -4, (232, 281)
_FUTEX = 202
#: poll, select, pause, nanosleep, wait4, restart_syscall, clock_nanosleep, waitid, pselect6, ppoll, futex_waitv, read
_EXACT_WAITS = frozenset({7, 23, 34, 35, 61, 219, 230, 247, 270, 271, 449, 0})
#: write, writev, accept, sendto, recvfrom, sendmsg, recvmsg, flock, accept4, rt_sigtimedwait: begun anew, but one that
#: has a timeout, or has done half of its work, ends as after SIGSTOP.
_OTHER_WAITS = frozenset({1, 20, 43, 44, 45, 46, 47, 73, 128, 288})
_FUTEX_WAIT, _FUTEX_WAIT_BITSET, _FUTEX_COMMAND = 0, 9, 0x7F
#: What a lock inside the C library waits for; who waits there may hold another such lock.
_LOCKED_AND_WAITED_FOR = 2

_PUSH_ALL = bytes.fromhex("50 51 52 53 55 56 57 4150 4151 4152 4153 4154 4155 4156 4157")
_POP_ALL = bytes.fromhex("415f 415e 415d 415c 415b 415a 4159 4158 5f 5e 5d 5b 5a 59 58")
_ALL_STATES = bytes.fromhex("b8ffffffff baffffffff")  # mov eax,-1; mov edx,-1
_LOADS = {"rdi": "48bf", "rsi": "48be", "rdx": "48ba", "rcx": "48b9", "rax": "48b8"}


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
    """Whether a sleeping thread may be borrowed: 0 gladly, more when there is no better one, None never."""
    if look.state != "S" or look.syscall is None:
        return None
    if look.syscall in _EXACT_WAITS:
        return 0
    if look.syscall in _OTHER_WAITS:
        return 1
    if look.syscall in _EPOLL_WAITS:
        return 1 if _is_endless(look.arguments[3]) else 2
    if look.syscall == _FUTEX:
        command, value = look.arguments[1] & _FUTEX_COMMAND, look.arguments[2]
        plain = command == _FUTEX_WAIT and value != _LOCKED_AND_WAITED_FOR
        return 0 if plain or command == _FUTEX_WAIT_BITSET else None
    return None


def _load(register: str, value: int) -> bytes:
    """mov register, value (64 bits)."""
    return bytes.fromhex(_LOADS[register]) + struct.pack("<Q", value)


def _call(function: int) -> bytes:
    return _load("rax", function) + bytes.fromhex("ffd0")


def _set(at: int, word: int, value: int) -> bytes:
    """mov dword [rip+word],value by an instruction that lies at `at`: touches no register and no flag."""
    return bytes.fromhex("c705") + struct.pack("<iI", word - (at + 10), value)


def stub(at: int, guard: int, function: int, arguments: tuple[int, ...], mailbox: Mailbox) -> bytes:
    """Return the code of the stub at `at`: if guard(), function(*arguments), then back to where the thread came from.

    The last 8 bytes are the address to go on at; `returns_to` fills them in.
    """
    code = _set(at, mailbox.state, ENTERED)
    code += bytes.fromhex("488d642480")  # lea rsp,[rsp-128]: the red zone below the stack belongs to the thread
    code += b"\x9c"  # pushfq
    code += _PUSH_ALL
    code += bytes.fromhex("4889e5")  # mov rbp,rsp
    code += bytes.fromhex("4881ec") + struct.pack("<I", _xstate_size() + 64)  # sub rsp,size
    code += bytes.fromhex("4883e4c0")  # and rsp,-64: xsave wants it so
    code += b"\xfc"  # cld
    code += bytes.fromhex("31c0 488dbc2400020000 b908000000 f348ab")  # zero the header at [rsp+512], 64 bytes
    code += _ALL_STATES + bytes.fromhex("480fae2424")  # xsave64 [rsp]
    code += _call(guard) + bytes.fromhex("85c0 7507")  # test eax,eax; jnz over the next two
    work = b"".join(_load(*pair) for pair in zip(("rdi", "rsi", "rdx", "rcx"), arguments, strict=False))
    work += _call(function)
    code += b"\xb8" + struct.pack("<I", NOT_INITIALISED) + b"\xeb" + struct.pack("<b", len(work))  # mov eax; jmp
    code += work
    code += bytes.fromhex("8905") + struct.pack("<i", mailbox.result - (at + len(code) + 6))  # mov [rip+result],eax
    code += _ALL_STATES + bytes.fromhex("480fae2c24")  # xrstor64 [rsp]
    code += bytes.fromhex("4889ec")  # mov rsp,rbp
    code += _POP_ALL
    code += b"\x9d"  # popfq
    code += bytes.fromhex("488da42480000000")  # lea rsp,[rsp+128]
    code += _set(at + len(code), mailbox.state, DONE)
    code += bytes.fromhex("ff2500000000")  # jmp [rip+0]
    return code + bytes(8)


def returns_to(stub_at: int, stub_size: int, address: int) -> tuple[int, bytes]:
    """Return where to write what so that the stub ends at `address`."""
    return stub_at + stub_size - 8, struct.pack("<Q", address)


def pending_body(at: int, functions: dict[str, int], text: int, mailbox: Mailbox) -> bytes:
    """Return what the interpreter calls at its next safe point: run the text, store 1 in `ran`.

    An exception stays set, as the interpreter expects of a pending call: it can only come from a signal handler of the
    job that ran meanwhile, and goes where it would have gone without us. Then `ran` is INTERRUPTED.
    """
    code = bytes.fromhex("53 4154 4883ec08")  # push rbx; push r12; sub rsp,8: aligned for calls
    code += _run(functions, text)
    code += _call(functions["PyErr_Occurred"]) + bytes.fromhex("48f7d8 19c0")  # neg rax; sbb eax,eax: 0, or -1 if any
    code += bytes.fromhex("b901000000 29c1 890d")  # mov ecx,1; sub ecx,eax; mov [rip+ran],ecx
    code += struct.pack("<i", mailbox.ran - (at + len(code) + 4))
    return code + bytes.fromhex("4883c408 415c 5b c3")  # add rsp,8; pop r12; pop rbx; ret


def thread_body(at: int, functions: dict[str, int], text: int, mailbox: Mailbox) -> bytes:
    """Return what a new thread runs: store its number, detach itself, take the GIL, run the text, release the GIL."""
    code = bytes.fromhex("53 4154 55")  # push rbx; push r12; push rbp: aligned for calls
    code += bytes.fromhex("b8ba000000 0f05")  # mov eax,SYS_gettid; syscall
    code += bytes.fromhex("8905") + struct.pack("<i", mailbox.new_thread - (at + len(code) + 6))
    code += _call(functions["pthread_self"]) + bytes.fromhex("4889c7") + _call(functions["pthread_detach"])
    code += _call(functions["PyGILState_Ensure"]) + bytes.fromhex("89c5")  # mov ebp,eax
    code += _run(functions, text)
    code += _call(functions["PyErr_Clear"])
    code += bytes.fromhex("89ef") + _call(functions["PyGILState_Release"])  # mov edi,ebp
    code += _set(at + len(code), mailbox.ran, 1)
    return code + bytes.fromhex("31c0 5d 415c 5b c3")  # xor eax,eax; pop rbp; pop r12; pop rbx; ret


def _run(functions: dict[str, int], text: int) -> bytes:
    """Return code that runs the text in a namespace of its own; an error that keeps it from starting is dropped."""
    code = _call(functions["PyDict_New"]) + bytes.fromhex("4889c3")  # mov rbx,rax
    code += _load("rdi", text) + bytes.fromhex("be01010000 4889da 4889d9")  # esi=Py_file_input; rdx=rcx=rbx
    code += _call(functions["PyRun_String"]) + bytes.fromhex("4989c4")  # mov r12,rax
    # Without a result, and with nothing in the namespace, not one line has run.
    code += bytes.fromhex("4889df") + _call(functions["PyDict_Size"]) + bytes.fromhex("4c09e0 750c")  # or rax,r12; jnz
    code += _call(functions["PyErr_Clear"])
    code += bytes.fromhex("4889df") + _call(functions["Py_DecRef"])  # mov rdi,rbx
    return code + bytes.fromhex("4c89e7") + _call(functions["Py_DecRef"])  # mov rdi,r12: NULL is fine


def _xstate_size() -> int:
    """Return a size that holds this machine's extended state: SSE, AVX, AVX-512, AMX.

    It is the kernel's size of a signal frame, which holds that state and a little more.
    """
    return int(ctypes.CDLL(None).getauxval(_AT_MINSIGSTKSZ)) or _ENOUGH_FOR_AMX


def interrupted(thread: Seized) -> Interrupted:
    """Return how the stopped thread has to go on.

    In a system call we do by hand what the kernel does after a stop: begin it anew, or go on with the time left.
    """
    registers = list(_REGISTERS.unpack(thread.registers(NT_PRSTATUS, _REGISTERS.size)))
    if registers[_CS] != _USER_CODE_64:
        raise Busy("it runs 32-bit code")
    restarts, syscall = False, None
    arguments = tuple(registers[number] for number in _ARGUMENTS)
    if _signed(registers[_ORIG_RAX]) >= 0:
        syscall = registers[_ORIG_RAX]
        result, number = _signed(registers[_RAX]), registers[_ORIG_RAX]
        # Without an end of its own an epoll can begin anew too. With one it would wait too long: its caller
        # gets the EINTR that this call may always give.
        endless = result == _EINTR and number in _EPOLL_WAITS and _is_endless(registers[_R10])
        restarts = result in _BEGIN_ANEW or result == _GO_ON or endless
        if restarts:
            registers[_RIP] -= _SYSCALL_SIZE
            registers[_RAX] = _RESTART_SYSCALL if result == _GO_ON else number
        registers[_ORIG_RAX] = _NO_SYSCALL
    return Interrupted(tuple(registers), registers[_RIP], registers[_RSP], restarts, syscall, arguments)


def redirect(thread: Seized, how: Interrupted, at: int) -> None:
    """Make the thread go on in the stub."""
    registers = (*how.registers[:_RIP], at, *how.registers[_RIP + 1 :])
    thread.set_registers(NT_PRSTATUS, _REGISTERS.pack(*registers))


def _is_endless(timeout: int) -> bool:
    return bool(timeout & 1 << 31)  # a negative int


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
