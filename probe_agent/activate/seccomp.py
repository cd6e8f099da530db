"""Check of the seccomp filters of this process, before a planned start makes a system call that they may kill it for.

A process cannot read its own filters, but a child has the same ones: it tries the recorder's system calls, and may be
killed. Runs on the thread that starts the recorder, only where that thread has a filter: one child, about 0.1 s.
"""

import os
import sys

__all__ = ["SeccompRefused", "check"]

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seccomp_trial.py")
#: Signal of a filter that kills.
_SIGSYS = 31


class SeccompRefused(ValueError):
    """A filter of this process kills it at a system call of the recorder."""


def check() -> None:
    """Raise SeccompRefused if the filters of this thread kill it at a system call of the recorder."""
    name = _killing_call() if _has_filter() and sys.executable else ""
    if name:
        raise SeccompRefused(
            f"the seccomp filter of this process kills it at {name}, which the recorder calls; start it without that"
            " filter, or with one that returns an error"
        )


def _killing_call() -> str:
    """Return the call that a child was killed at, or "" if it made all of them."""
    ours, theirs = os.pipe()
    try:
        os.set_inheritable(theirs, True)
        command = [sys.executable, "-I", "-S", _PROGRAM, str(theirs)]
        # Not os.fork: no handler of the job's runs, and it is safe beside other threads.
        child = os.posix_spawn(sys.executable, command, {})
    finally:
        os.close(theirs)
        with os.fdopen(ours) as told:
            names = told.read().split()
    try:
        status = os.waitpid(child, 0)[1]
    except ChildProcessError:  # the job was started with SIGCHLD ignored
        return "" if names[-1:] == ["exit"] else (names or ["execve"])[-1]
    return names[-1] if names and os.WIFSIGNALED(status) and os.WTERMSIG(status) == _SIGSYS else ""


def _has_filter() -> bool:
    try:
        with open("/proc/thread-self/status") as status:
            return "\nSeccomp:\t2\n" in status.read()
    except OSError:
        return False
