"""Limits that a query worker sets itself: memory, CPU time, priority, stops.

Runs in the worker: 30 µs a statement. The kernel enforces them, whatever DuckDB does: an allocation beyond the limit
fails and DuckDB answers Out of Memory; a worker beyond its CPU time is ended. The server enforces the wall-clock limit.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
from contextlib import suppress
from time import sleep

__all__ = [
    "GROWN_BYTES",
    "die_with",
    "free_memory",
    "give_way",
    "hold_cpu",
    "hold_memory",
    "mapped_bytes",
    "stop_after_each",
]

#: What a statement may map beyond its memory: answers, sorting, fragments that DuckDB does not count.
SLACK_BYTES = 512 << 20
#: A worker that has grown by more than this since its start is replaced: its allocator does not return memory.
GROWN_BYTES = 256 << 20
#: The kernel lets ten autogroups a second be changed, on the whole host.
_AUTOGROUP_TRIES, _AUTOGROUP_WAIT_S = 8, 0.05
_PR_SET_PDEATHSIG = 1
_CLOCK_PROCESS_CPUTIME_ID = 2
#: More than any address space has, and a number that the kernel accepts.
_MOST_BYTES = 1 << 62
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def mapped_bytes() -> int:
    """Return the size of this process's address space."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * _PAGE_BYTES


def hold_memory(memory_mb: int, more_bytes: int = 0) -> None:
    """Limit this process to what it maps now, `memory_mb`, some slack and `more_bytes`."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = mapped_bytes() + memory_mb * 1_000_000 + SLACK_BYTES + more_bytes
    wanted = min(wanted, most if most != resource.RLIM_INFINITY else _MOST_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, most))


def free_memory() -> None:
    """Lift the limit of `hold_memory`."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def hold_cpu(more_s: float) -> None:
    """End this process (SIGXCPU) once it has used `more_s` of CPU time from now on."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = usage.ru_utime + usage.ru_stime + more_s + 1
    if wanted < 1e9 and (most == resource.RLIM_INFINITY or wanted < most):
        resource.setrlimit(resource.RLIMIT_CPU, (int(wanted), most))


def give_way(pid: int) -> None:
    """Have a process, the leader of its session, run when nothing else wants the CPU (SCHED_IDLE), for good.

    It gets 0.3 % of a CPU that a job uses all the time, or 1.5 % where the kernel groups processes by session. A task
    that wakes up is put on its CPU rather than on the job's, which is not so for a process of nice 19.
    """
    with suppress(OSError):  # it has ended, or a thread of it
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
    # With autogroups the kernel weighs sessions against each other, and policies count within one only.
    for _ in range(_AUTOGROUP_TRIES):
        try:
            with open(f"/proc/{pid}/autogroup", "w") as file:
                file.write("19")
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return  # the kernel has no autogroups, we may not write there, or it has ended
            sleep(_AUTOGROUP_WAIT_S)


def stop_after_each(cpu_s: float) -> None:
    """Have the kernel stop this process (SIGSTOP) each time it has used so much CPU time. Somebody has to continue it.

    Does nothing where the kernel or the C library has no timers of that kind.
    """
    event = (ctypes.c_int * 16)(0, 0, signal.SIGSTOP, 0)  # struct sigevent: a value, the signal, SIGEV_SIGNAL
    seconds, nanoseconds = divmod(int(cpu_s * 1e9), 10**9)
    times = (ctypes.c_long * 4)(seconds, nanoseconds, seconds, nanoseconds)  # again and again, for the first time
    timer = ctypes.c_void_p()
    for library in (None, "librt.so.1"):  # the second before glibc 2.34
        with suppress(OSError, AttributeError):
            c = ctypes.CDLL(library)
            if c.timer_create(_CLOCK_PROCESS_CPUTIME_ID, event, ctypes.byref(timer)) == 0:
                c.timer_settime(timer, 0, times, None)
            return


def die_with(parent: int) -> None:
    """End this process as soon as its parent has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
