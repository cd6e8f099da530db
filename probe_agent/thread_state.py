"""State of one thread as the kernel shows it: running, or the system call and kernel function that it waits in.

Read from /proc, which touches nothing in the process: about 50 µs a thread. The system call needs the rights of a
debugger; without them it stays unknown.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from .procfs import STATES, Process

__all__ = ["ThreadState", "read_thread_state"]

#: Calls that a thread may spend time in; others are shown by their numbers.
_NAMES = {
    "x86_64": """
        0:read 1:write 2:open 3:close 4:stat 5:fstat 6:lstat 7:poll 9:mmap 10:mprotect 11:munmap 12:brk 16:ioctl
        17:pread64 18:pwrite64 19:readv 20:writev 23:select 24:sched_yield 25:mremap 26:msync 28:madvise 34:pause
        35:nanosleep 40:sendfile 42:connect 43:accept 44:sendto 45:recvfrom 46:sendmsg 47:recvmsg 56:clone 58:vfork
        59:execve 60:exit 61:wait4 65:semop 70:msgrcv 72:fcntl 73:flock 74:fsync 75:fdatasync 77:ftruncate 82:rename
        83:mkdir 87:unlink 89:readlink 128:rt_sigtimedwait 130:rt_sigsuspend 137:statfs 149:mlock 162:sync 202:futex
        208:io_getevents 209:io_submit 217:getdents64 219:restart_syscall 220:semtimedop 230:clock_nanosleep
        231:exit_group 232:epoll_wait 243:mq_timedreceive 247:waitid 257:openat 258:mkdirat 262:newfstatat
        263:unlinkat 270:pselect6 271:ppoll 275:splice 277:sync_file_range 281:epoll_pwait 285:fallocate 288:accept4
        299:recvmmsg 306:syncfs 310:process_vm_readv 316:renameat2 318:getrandom 324:membarrier 326:copy_file_range
        327:preadv2 332:statx 426:io_uring_enter 435:clone3 441:epoll_pwait2 449:futex_waitv
    """,
    "aarch64": """
        2:io_submit 4:io_getevents 22:epoll_pwait 25:fcntl 29:ioctl 32:flock 34:mkdirat 35:unlinkat 43:statfs
        46:ftruncate 47:fallocate 56:openat 57:close 61:getdents64 63:read 64:write 65:readv 66:writev 67:pread64
        68:pwrite64 71:sendfile 72:pselect6 73:ppoll 76:splice 79:newfstatat 80:fstat 81:sync 82:fsync 83:fdatasync
        84:sync_file_range 93:exit 94:exit_group 95:waitid 98:futex 101:nanosleep 115:clock_nanosleep
        124:sched_yield 128:restart_syscall 133:rt_sigsuspend 137:rt_sigtimedwait 183:mq_timedreceive 188:msgrcv
        192:semtimedop 193:semop 202:accept 203:connect 206:sendto 207:recvfrom 211:sendmsg 212:recvmsg 214:brk
        215:munmap 216:mremap 220:clone 221:execve 222:mmap 226:mprotect 227:msync 228:mlock 233:madvise 242:accept4
        243:recvmmsg 260:wait4 267:syncfs 270:process_vm_readv 276:renameat2 278:getrandom 283:membarrier
        285:copy_file_range 286:preadv2 291:statx 426:io_uring_enter 435:clone3 441:epoll_pwait2 449:futex_waitv
    """,
}
_CALLS = dict(entry.split(":") for entry in _NAMES.get(platform.machine(), "").split())


@dataclass(frozen=True)
class ThreadState:
    """What one thread does, in the kernel's words."""

    state: str
    syscall: str | None
    waits_in: str | None
    cpu_s: float


def read_thread_state(process: Process, tid: int) -> ThreadState:
    """Return the state of one thread of `process`, by the number that we see. Raises what reading /proc raises."""
    stat = process.stat_now(tid)
    letter = stat.letter
    waits_in = _read(process, tid, "wchan")
    return ThreadState(
        STATES.get(letter, letter),
        None if letter == "R" else _call_in(_read(process, tid, "syscall")),
        None if waits_in in ("", "0") else waits_in,
        stat.cpu_s,
    )


def _call_in(text: str) -> str | None:
    """Return the name of the system call in the text of `syscall`; a thread outside of any shows -1."""
    number = text.partition(" ")[0]
    if not number.isdigit():
        return None
    return _CALLS.get(number, f"system call {number}")


def _read(process: Process, tid: int, name: str) -> str:
    try:
        return process.read(f"task/{tid}/{name}").strip()
    except PermissionError:
        return ""
