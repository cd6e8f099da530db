"""Checks of what the kernel allows: users, capabilities, Yama, seccomp on our side, namespaces.

Runs in the attaching process and reads /proc only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from probe_agent.inject.threads.ptrace import CAPABILITY, PTRACE_CALL, why_forbidden
from probe_agent.inject.threads.tracee import Tracee
from probe_agent.procfs import Process

from .check import Check

__all__ = ["namespaces", "own_seccomp", "permission", "readable", "yama"]

_CAP_SYS_PTRACE = 19


def permission(process: Tracee) -> Check:
    """Check that all its user and group IDs are ours, or that we have the capability."""
    status = process.status()
    own = (os.getuid(), os.getgid())
    theirs = {tuple(map(int, pair)) for pair in zip(status["Uid"].split()[:3], status["Gid"].split()[:3], strict=True)}
    capable = _capable()
    saw = f"it belongs to uid {process.uid}, we are uid {own[0]}" + (" with CAP_SYS_PTRACE" if capable else "")
    return Check(
        "permission",
        capable or theirs == {own},
        saw,
        f"run as that user (sudo -u '#{process.uid}' probe …), or with CAP_SYS_PTRACE; {CAPABILITY}",
    )


def yama(process: Tracee) -> Check:
    """Check Yama's ptrace_scope: which processes the kernel lets us trace."""
    path = Path("/proc/sys/kernel/yama/ptrace_scope")
    scope = int(path.read_text()) if path.exists() else 0
    ok = scope == 0 or (scope < 3 and _capable()) or (scope == 1 and _is_descendant(process))
    remedies = {
        1: f"run with CAP_SYS_PTRACE (sudo probe …; {CAPABILITY}), or sysctl kernel.yama.ptrace_scope=0",
        2: f"run with CAP_SYS_PTRACE (sudo probe …; {CAPABILITY})",
        3: "start the job with the agent: PROBE=1; nobody may trace until the machine restarts",
    }
    return Check("ptrace_scope", ok, f"kernel.yama.ptrace_scope is {scope}", remedies.get(scope, ""))


def own_seccomp(process: Tracee) -> Check:
    """Check for a seccomp filter on our side that refuses ptrace, whatever our rights."""
    why = why_forbidden()
    saw = f"the kernel refuses the call ({why}): a seccomp filter on our side" if why else "allowed"
    return Check("ptrace", not why, saw, PTRACE_CALL)


def readable(process: Tracee) -> Check:
    """Check that its memory can be read: not that of a kernel thread, nor of a process that is not dumpable."""
    try:
        num = len(process.maps)
    except PermissionError:
        saw = "it has made itself unreadable (PR_SET_DUMPABLE), or has more rights than we have"
        return Check("memory", False, saw, "run as root, or start the job with the agent: PROBE=1")
    saw = f"{num} mappings" if num else "it has no memory: it is ending, or it is a kernel thread"
    return Check("memory", num > 0, saw, "see the processes here: probe list")


def namespaces(process: Tracee) -> Check:
    """Name the namespaces in which paths and numbers differ from ours; an attach knows how to translate them."""
    try:
        different = [
            kind
            for kind in ("mnt", "pid", "net", "user")
            if os.readlink(f"{process.proc}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
        ]
        root = os.readlink(f"{process.proc}/root")
    except PermissionError:
        return Check("namespaces", True, "not readable")
    saw = f"its own {', '.join(different)}" if different else "the same as ours"
    saw += f"; its root is {root}" if root != "/" else ""
    saw += f"; it calls itself {process.inner_pid}" if process.inner_pid != process.pid else ""
    return Check("namespaces", True, saw)


def _capable() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.M)
    return effective is not None and bool(int(effective[1], 16) >> _CAP_SYS_PTRACE & 1)


def _is_descendant(process: Tracee) -> bool:
    pid = process.pid
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = Process(pid).parent_pid
    return False
