"""The system calls that the recorder makes in the target, from its start to the end of its last thread.

Taken from traces of recorders that were started, asked and detached. Calls that every Python makes all the time are
among them: a filter that was put on after the interpreter's start may forbid them. Each has the arguments that a
filter can look at, numbers and flags; where a pointer or descriptor belongs, there is one that is none.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

__all__ = ["AUDIT_ARCHITECTURE", "NEEDED", "SystemCall"]

#: What a filter is told of the processor, by the name of the machine.
AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}.get(platform.machine(), 0)

_NO_FD = (1 << 64) - 1
_AT_CWD = (1 << 64) - 100
_CLOEXEC, _CREATE, _WRITE, _READ_WRITE = 0o2000000, 0o100, 0o1, 0o2
_THREAD = 0x3D0F00
_SHARES_MEMORY = 0x100


@dataclass(frozen=True)
class SystemCall:
    """One call: its name, its number here, its arguments; without an answer to an `essential` one no attach works."""

    name: str
    number: int
    arguments: tuple[int, ...] = ()
    essential: bool = False

    @property
    def harmless(self) -> tuple[int, ...]:
        """Arguments with which it can be tried: a thread is not made with these flags."""
        return (_THREAD & ~_SHARES_MEMORY, 0) if self.name == "clone" else self.arguments


#: name, number on x86-64, number on aarch64 (None: there another call of this table does the same), arguments
_CALLS: tuple[tuple[str, int | None, int | None, tuple[int, ...]], ...] = (
    ("read", 0, 63, (_NO_FD, 0, 0)),
    ("write", 1, 64, (_NO_FD, 0, 0)),
    ("openat", 257, 56, (_AT_CWD, 0, _CLOEXEC)),
    ("openat", 257, 56, (_AT_CWD, 0, _CLOEXEC | _CREATE | _WRITE, 0o600)),
    ("openat", 257, 56, (_AT_CWD, 0, _CLOEXEC | _CREATE | _READ_WRITE, 0o600)),
    ("close", 3, 57, (_NO_FD,)),
    ("fstat", 5, 80, (_NO_FD, 0)),
    ("newfstatat", 262, 79, (_AT_CWD, 0, 0, 0)),
    ("lseek", 8, 62, (_NO_FD, 0, 0)),
    ("pread64", 17, 67, (_NO_FD, 0, 0, 0)),
    ("ioctl", 16, 29, (_NO_FD, 0x5401, 0)),
    ("fcntl", 72, 25, (_NO_FD, 3)),
    ("flock", 73, 32, (_NO_FD, 6)),
    ("access", 21, None, (0, 0)),
    ("faccessat", None, 48, (_AT_CWD, 0, 0)),
    ("getdents64", 217, 61, (_NO_FD, 0, 0)),
    ("statfs", 137, 43, (0, 0)),
    ("readlink", 89, None, (0, 0, 0)),
    ("readlinkat", None, 78, (_AT_CWD, 0, 0, 0)),
    ("mkdir", 83, None, (0, 0o700)),
    ("mkdirat", None, 34, (_AT_CWD, 0, 0o700)),
    ("rename", 82, None, (0, 0)),
    ("renameat", None, 38, (_AT_CWD, 0, _AT_CWD, 0)),
    ("unlink", 87, None, (0,)),
    ("rmdir", 84, None, (0,)),
    ("unlinkat", None, 35, (_AT_CWD, 0, 0)),
    ("chmod", 90, None, (0, 0o600)),
    ("fchmodat", None, 53, (_AT_CWD, 0, 0o600)),
    ("truncate", 76, 45, (0, 0)),
    ("fallocate", 285, 47, (_NO_FD, 0, 0, 0)),
    ("utimensat", 280, 88, (_NO_FD, 0, 0, 0)),
    ("mmap", 9, 222, (0, 0, 3, 0x22, _NO_FD, 0)),
    ("mmap", 9, 222, (0, 0, 3, 0x01, _NO_FD, 0)),
    ("mmap", 9, 222, (0, 0, 0, 0x20022, _NO_FD, 0)),
    ("mprotect", 10, 226, (1, 0, 3)),
    ("munmap", 11, 215, (1, 0)),
    ("madvise", 28, 233, (1, 0, 4)),
    ("futex", 202, 98, (0, 129, 0, 0, 0, 0)),
    ("clone3", 435, 435, (0, 0)),
    ("clone", 56, 220, (_THREAD, 0)),
    ("set_robust_list", 273, 99, (0, 0)),
    ("rseq", 334, 293, (0, 0, 0, 0)),
    ("exit", 60, 93, (0,)),
    ("rt_sigprocmask", 14, 135, (0, 0, 0, 8)),
    ("rt_sigaction", 13, 134, (64, 0, 0, 8)),
    ("sigaltstack", 131, 132, (0, 0)),
    ("sched_yield", 24, 124, ()),
    ("sched_getaffinity", 204, 123, (0, 0, 0)),
    ("clock_nanosleep", 230, 115, (1, 1, 0, 0)),
    ("getpid", 39, 172, ()),
    ("gettid", 186, 178, ()),
    ("getuid", 102, 174, ()),
    ("geteuid", 107, 175, ()),
    ("getrusage", 98, 165, (0, 0)),
    ("uname", 63, 160, (0,)),
    ("poll", 7, None, (0, 0, 0)),
    ("ppoll", None, 73, (0, 0, 0, 0, 0)),
    ("socket", 41, 198, (1, 1 | _CLOEXEC, 0)),
    ("bind", 49, 200, (_NO_FD, 0, 0)),
    ("listen", 50, 201, (_NO_FD, 64)),
    ("accept4", 288, 242, (_NO_FD, 0, 0, _CLOEXEC)),
    ("getsockname", 51, 204, (_NO_FD, 0, 0)),
    ("getsockopt", 55, 209, (_NO_FD, 1, 17, 0, 0)),
    ("sendto", 44, 206, (_NO_FD, 0, 0, 0x4000, 0, 0)),
    ("recvfrom", 45, 207, (_NO_FD, 0, 0, 0, 0, 0)),
    ("shutdown", 48, 210, (_NO_FD, 2)),
)
_ESSENTIAL = {"socket", "bind", "listen", "accept4", "clone3", "clone", "mmap"}

NEEDED = tuple(
    SystemCall(name, number, arguments, name in _ESSENTIAL)
    for name, *numbers, arguments in _CALLS
    if isinstance(number := numbers[_COLUMN], int)
)
