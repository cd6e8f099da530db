"""Check of seccomp filters: what those of a process answer to the recorder's system calls, before one is made.

Filters belong to threads. With CAP_SYS_ADMIN the kernel returns them and `bpf` runs them here; the thread stands still
for about 0.1 ms. Without it, the filters of a process that has inherited ours are tried in a child of ours. Otherwise
the answer is unknown, and the attach is refused.

Runs in the attaching process.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence

from probe_agent.errors import AttachRefused
from probe_agent.inject.threads.machine import machine
from probe_agent.inject.threads.ptrace import on_own_thread, seized
from probe_agent.inject.threads.tracee import Tracee
from probe_agent.procfs import ENDED, Process

from . import bpf
from .check import Check
from .system_calls import AUDIT_ARCHITECTURE, NEEDED, SystemCall

__all__ = ["check"]

_NONE, _STRICT, _FILTERED = "0", "1", "2"
_ERRNO, _LOG, _ALLOW = 0x00050000, 0x7FFC0000, 0x7FFF0000
_ACTION, _DATA = 0xFFFF0000, 0x0000FFFF
_ENOSYS, _ANSWERS = 38, {1: "EPERM", 13: "EACCES", 38: "ENOSYS"}
_TRY_S = 20.0
#: Tries each call in a child of its own; prints -1 for a call that was killed, else the error number.
_TRY = """
import ctypes, json, os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
call, found = ctypes.CDLL(None, use_errno=True).syscall, []
for number, arguments in json.load(sys.stdin):
    child = os.fork()
    if not child:
        signal.alarm(2)
        done = call(ctypes.c_long(number), *map(ctypes.c_ulong, arguments))
        os._exit(ctypes.get_errno() if done == -1 else 0)
    status = os.waitpid(child, 0)[1]
    found.append(-1 if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS else os.WEXITSTATUS(status))
print(json.dumps(found))
"""

#: The answer of a filter that kills the process; others are error numbers, or 0 for a call that is allowed.
_KILLS = -1
_RISK = "or attach at the risk of killing it: probe {pid} inject --risk-seccomp"


class _Unknown(Exception):
    """The filters cannot be read or tried; its text says why."""


def check(process: Tracee) -> Check:
    """Check that every thread with a filter may make the recorder's system calls."""
    status = process.status()
    saw = "NoNewPrivs" if status.get("NoNewPrivs") == "1" else ""
    mode_of = {tid: found for tid in process.threads() if (found := _filters(process, tid)) is not None}
    if any(mode == _STRICT for mode, _ in mode_of.values()):
        return Check(
            "limits", False, "it has strict seccomp, which kills it at almost every system call", _remedy(process)
        )
    filtered: dict[int, list[int]] = {}
    for tid, (mode, count) in mode_of.items():
        if mode == _FILTERED:
            filtered.setdefault(count, []).append(tid)
    if not filtered:
        return Check("limits", True, ", ".join(filter(None, ("no seccomp filter", saw))))
    verdicts: dict[str, int] = {}
    for tids in filtered.values():
        tid = _best_to_stop(process, tids)
        try:
            answers = _answers(process, tid)
        except _Unknown as unknown:
            told = f"it has a seccomp filter that may kill it, and {unknown}"
            remedy = f"run as root with CAP_SYS_ADMIN, which can read the filter; {_remedy(process)}"
            return Check("limits", False, told, remedy)
        for call, answer in zip(NEEDED, answers, strict=True):
            if answer:
                verdicts[call.name] = _KILLS if _KILLS in (answer, verdicts.get(call.name)) else answer
    return _judged(process, verdicts, saw)


def _judged(process: Tracee, verdicts: dict[str, int], saw: str) -> Check:
    killed = [name for name, answer in verdicts.items() if answer == _KILLS]
    if killed:
        told = f"its seccomp filter kills it at {_listed(killed)}, which the agent calls"
        remedy = f"start it without that filter, or with one that returns an error; {_remedy(process)}"
        return Check("limits", False, told, remedy)
    if verdicts.get("clone3") == _ENOSYS:
        del verdicts["clone3"]  # then the C library calls clone
    essential = {call.name for call in NEEDED if call.essential}
    told = ", ".join(f"{name} ({_ANSWERS.get(answer, answer)})" for name, answer in verdicts.items())
    if essential & set(verdicts):
        remedy = "allow these calls in its filter: without them the agent cannot answer"
        return Check("limits", False, f"its seccomp filter refuses {told}", remedy)
    told = f"a seccomp filter that kills at none of the agent's calls{told and f', and refuses {told}'}"
    return Check("limits", True, ", ".join(filter(None, (told, saw))))


def _listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _remedy(process: Tracee) -> str:
    return _RISK.format(pid=process.pid)


def _filters(process: Process, tid: int) -> tuple[str, int] | None:
    """Return mode and number of a thread's filters; kernels before 5.9 do not tell the number."""
    try:
        status = process.status(tid)
    except ENDED:
        return None
    return status.get("Seccomp", _NONE), int(status.get("Seccomp_filters", -1))


def _best_to_stop(process: Tracee, tids: list[int]) -> int:
    """Return the one of these threads whose system call, if it is in one, is disturbed least by a stop."""

    def disturbance(tid: int) -> tuple[int, int]:
        look = process.look(tid)
        rank = 0 if look.syscall is None else machine.suits(look)
        return (3 if rank is None else rank, tid)

    return min(tids, key=disturbance)


def _answers(process: Tracee, tid: int) -> list[int]:
    """Return the answers of a thread's filters to the calls that we need. Raises _Unknown."""
    try:
        programs = on_own_thread(lambda: _read(tid))
    except (AttachRefused, OSError) as error:
        if not _has_ours(process, tid):
            why = error.message if isinstance(error, AttachRefused) else error.strerror
            raise _Unknown(f"the kernel does not let us read it ({why})") from None
        return _tried()
    return [_answer(programs, call) for call in NEEDED]


def _read(tid: int) -> list[bytes]:
    with seized(tid) as thread:
        thread.stop()
        return thread.seccomp_filters()


def _answer(programs: list[bytes], call: SystemCall) -> int:
    """Return the strictest answer of all filters, as the kernel does."""
    data = bpf.described(call.number, AUDIT_ARCHITECTURE[platform.machine()], call.arguments)
    try:
        # In the kernel's order: killing the process, whose value has the highest bit, comes before all others.
        strictest = min((bpf.run(program, data) ^ 0x80000000 for program in programs), default=_ALLOW ^ 0x80000000)
    except (ValueError, LookupError, ArithmeticError):
        raise _Unknown("it cannot be decoded") from None
    answer = strictest ^ 0x80000000
    if answer & _ACTION in (_ALLOW, _LOG):
        return 0
    return answer & _DATA if answer & _ACTION == _ERRNO else _KILLS


def _has_ours(process: Tracee, tid: int) -> bool:
    """Return whether a thread has our filters: as many as we and as each of its ancestors, up to a common one or to
    the first process that we see. A process that adds a filter has more than its parent."""
    ours = _count(os.getpid())
    mine = {os.getpid(), *_ancestors(os.getpid())}
    found = _filters(process, tid)
    if ours is None or found is None or found[1] != ours:
        return False
    for pid in [process.pid, *_ancestors(process.pid)]:
        if _count(pid) != ours:
            return False
        if pid in mine:
            break
    return True


def _count(pid: int) -> int | None:
    found = _filters(Process(pid), pid)
    return found[1] if found is not None and found[0] == _FILTERED and found[1] > 0 else None


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while True:
        try:
            pid = Process(pid).parent_pid
        except ENDED:
            return found
        if not pid:
            return found
        found.append(pid)


def _tried() -> list[int]:
    """Return what our own filters answer to each call, tried in children of a process of ours."""
    calls = json.dumps([(call.number, call.harmless) for call in NEEDED])
    command = [sys.executable, "-I", "-S", "-c", _TRY]
    try:
        done = subprocess.run(command, input=calls, capture_output=True, text=True, timeout=_TRY_S)
        if done.returncode == -signal.SIGSYS:
            return [_KILLS if call.name in ("clone", "clone3") else 0 for call in NEEDED]
        found: list[int] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise _Unknown(f"ours cannot be tried ({type(error).__name__})") from None
    return [answer if answer == _KILLS or answer in _ANSWERS else 0 for answer in found]
