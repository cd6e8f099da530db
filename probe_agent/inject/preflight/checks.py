"""Checks before an attach: what would stop it, and the remedy.

Runs in the attaching process and reads /proc only; a thread with seccomp filters is stopped for a moment so that they
can be read. `probe doctor PID` shows every check; `attach` refuses at the first that fails.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic, sleep

from probe_agent.errors import AttachRefused
from probe_agent.inject import handshake
from probe_agent.inject.folder import FREE_MIB, folders, require_own, require_space
from probe_agent.inject.threads import code_caves, symbols
from probe_agent.inject.threads.elf import auxiliary
from probe_agent.inject.threads.machine import ARCHITECTURES, machine
from probe_agent.inject.threads.mailbox import FREE
from probe_agent.inject.threads.tracee import Tracee

from . import permissions, seccomp
from .check import Check

__all__ = ["Check", "examine", "require", "require_calls"]

OLDEST, NEWEST_TRIED = (3, 9), (3, 13)
#: States that every process is in for a moment now and then, and how long they may last.
_PASSING_S = 1.0
_PASSING = ("D", "t")
_ENDED = Check("process", False, "it has ended", "see the processes here: probe list")
_HWCAP2, _HAS_SME = 26, 1 << 23


def examine(pid: int) -> list[Check]:
    """Return every check of process `pid`, in the order in which they matter; nothing is touched."""
    process = Tracee(pid)
    checks: list[Check] = []
    try:
        checks += _checks(process)
        checks += _remarks(process, can_be_read=all(check.ok for check in checks))
    except (FileNotFoundError, ProcessLookupError):
        if not process.has_ended():
            raise
        checks.append(_ENDED)
    return checks


def require(process: Tracee) -> None:
    """Raise AttachRefused for the first check that fails."""
    _refuse(process, _checks(process))


def require_calls(process: Tracee) -> None:
    """Raise AttachRefused if a seccomp filter may kill the process at a system call of the recorder."""
    _refuse(process, map(seccomp.check, [process]))


def _refuse(process: Tracee, checks: Iterable[Check]) -> None:
    try:
        failed = next((check for check in checks if not check.ok), None)
    except (FileNotFoundError, ProcessLookupError):
        if not process.has_ended():
            raise
        failed = _ENDED
    if failed is not None:
        raise AttachRefused(f"cannot attach to pid {process.pid}: {failed.saw}", failed.remedy)


def _checks(process: Tracee) -> Iterator[Check]:
    for check in (
        _platform,
        _exists,
        _state,
        _tracer,
        permissions.permission,
        permissions.yama,
        permissions.own_seccomp,
        permissions.readable,
        _python,
        _version,
        _libc,
        _cave,
        _folder,
    ):
        result = check(process)
        yield result
        if not result.ok:
            return


def _remarks(process: Tracee, *, can_be_read: bool) -> Iterator[Check]:
    """Checks that stop no attach, but explain one that fails."""
    if process.has_ended():
        return
    yield permissions.namespaces(process)
    if can_be_read:
        yield seccomp.check(process)
        yield _threads(process)
        yield _agent(process)


def _platform(process: Tracee) -> Check:
    machine_name = platform.machine()
    ok = sys.platform == "linux" and machine_name in ARCHITECTURES
    saw = f"{sys.platform} on {machine_name}" + (" (untested)" if machine_name == "aarch64" else "")
    if machine_name == "aarch64" and auxiliary(_HWCAP2) & _HAS_SME:
        ok, saw = False, f"{saw}, with SME, whose state cannot be restored"
    return Check(
        "platform",
        ok,
        saw,
        "start the job with the agent instead: PROBE=1 or `probe run`; attach needs Linux on x86-64",
    )


def _exists(process: Tracee) -> Check:
    if not os.path.isdir(process.proc):
        return Check("process", False, "there is no such process", "see the processes here: probe list")
    leader = process.status()["Tgid"]
    return Check(
        "process",
        int(leader) == process.pid,
        f"{process.pid} is a thread of process {leader}" if int(leader) != process.pid else "running",
        f"name the process: probe {leader} inject",
    )


def _state(process: Tracee) -> Check:
    deadline = monotonic() + _PASSING_S
    while (state := process.status()["State"])[0] in _PASSING and monotonic() < deadline:
        sleep(0.01)
    remedies = {
        "T": f"continue it first: kill -CONT {process.pid}",
        "t": f"end the debugger that holds it (pid {process.status()['TracerPid']})",
        "Z": "it has ended; its parent has to reap it"
        if len(process.threads()) == 1
        else "its main thread has ended, and Python with it, though other threads run: start the job with PROBE=1",
        "X": "see the processes here: probe list",
        "D": f"see which disk, device or child it waits for: cat /proc/{process.pid}/stack",
    }
    return Check("state", state[0] not in remedies, f"its state is {state}", remedies.get(state[0], ""))


def _tracer(process: Tracee) -> Check:
    deadline = monotonic() + _PASSING_S
    while (tracer := int(process.status()["TracerPid"])) and monotonic() < deadline:
        sleep(0.01)  # another attach traces it for 1 ms
    saw = f"process {tracer} traces it" if tracer else "not traced"
    return Check("tracer", tracer == 0, saw, f"end that debugger or strace first (pid {tracer})")


def _python(process: Tracee) -> Check:
    program = process.module(process.exe)
    if program is None:
        saw = f"cannot read its program {process.exe}, or it is not for this kind of machine"
        return Check("python", False, saw, "run as root, or start the job with the agent: PROBE=1")
    if program.elf.machine != machine.MACHINE:
        saw = f"its program is for another processor (ELF machine {program.elf.machine})"
        return Check(
            "python", False, saw, "attach on a machine that runs it natively; or start the job with the agent: PROBE=1"
        )
    found = symbols.addresses(process, symbols.INTERPRETER)
    missing = [name for name in symbols.INTERPRETER if name not in found]
    has_some = len(missing) < len(symbols.INTERPRETER) or any("python" in path for path in process.code_files)
    if not missing:
        return Check("python", True, "CPython's functions found")
    if has_some:
        saw = f"its Python does not tell where its functions are ({missing[0]})"
        return Check("python", False, saw, "start the job with the agent instead: PROBE=1 or `probe run`")
    return Check("python", False, f"it is not Python: {process.exe}", "see the Python processes here: probe list")


def _version(process: Tracee) -> Check:
    version = process.python_version
    if version is None:
        return Check("version", True, "version unknown")
    saw = "Python {}.{}".format(*version) + (" (untested)" if version > NEWEST_TRIED else "")
    return Check("version", version >= OLDEST, saw, "run the job with CPython {}.{} or later".format(*OLDEST))


def _libc(process: Tracee) -> Check:
    musl = [path for path in process.code_files if "ld-musl" in path]
    ok = not musl and len(symbols.addresses(process, symbols.PTHREAD)) == len(symbols.PTHREAD)
    saw = f"it runs on musl ({musl[0]})" if musl else "glibc" if ok else "no pthread_create found in it"
    return Check("libc", ok, saw, "start the job with the agent instead: PROBE=1 or `probe run`; attach needs glibc")


def _cave(process: Tracee) -> Check:
    known = code_caves.find_caves(process)
    num_used = sum(cave.read(process).state != FREE for cave in known)
    saw = f"{len(known)} code caves of {code_caves.SIZE} bytes, {num_used} in use"
    return Check("place", bool(known), saw, "start the job with the agent instead: PROBE=1 or `probe run`")


def _folder(process: Tracee) -> Check:
    seen = []
    for folder in folders(process):
        base = folder.parent.parent
        try:
            space = require_space(process, base)
            if (refusal := _of_somebody_else(process, folder.parent)) is None:
                return Check("folder", True, f"{base} has {space}")
            seen.append(refusal)
        except OSError as error:
            seen.append(f"{base}: {error.strerror or error}")
    remedy = (
        f"give its user {FREE_MIB} MiB in /dev/shm or /tmp; in Docker: docker run --shm-size=256m; in Kubernetes: an"
        " emptyDir with medium: Memory at /dev/shm"
    )
    return Check("folder", False, "in its mount namespace: " + ", ".join(seen), remedy)


def _of_somebody_else(process: Tracee, folder: Path) -> str | None:
    """Return what is wrong with the folder of its user's targets; None if nothing is, or it does not exist yet."""
    try:
        require_own(process, folder)
    except FileNotFoundError:
        return None  # the attach makes it
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return None


def _threads(process: Tracee) -> Check:
    looks = process.looks()
    num_quiet = sum(machine.suits(look) is not None for look in looks.values())
    main = looks[process.pid]
    where = f", in system call {main.syscall}" if main.syscall is not None else ""
    return Check(
        "threads", True, f"{len(looks)}, {num_quiet} in a plain wait; the main thread is in state {main.state}{where}"
    )


def _agent(process: Tracee) -> Check:
    try:
        there = handshake.running(process)
    except AttachRefused as silent:
        return Check("agent", False, silent.message, silent.hint)
    return Check("agent", True, "not attached" if there is None else f"attached already ({there[1]['how']})")
