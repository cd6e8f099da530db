"""What lies between us and the process: users, capabilities, the kernel's rules, containers.

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
    """The same user and group, all of them, or the capability."""
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
    """Which processes the kernel lets anybody trace."""
    path = Path("/proc/sys/kernel/yama/ptrace_scope")
    scope = int(path.read_text()) if path.exists() else 0
    ok = scope == 0 or (scope < 3 and _capable()) or (scope == 1 and _is_descendant(process))
    remedies = {
        1: f"run with CAP_SYS_PTRACE (sudo probe …; {CAPABILITY}), or sysctl kernel.yama.ptrace_scope=0",
        2: f"run with CAP_SYS_PTRACE (sudo probe …; {CAPABILITY})",
        3: "nobody may trace until the machine restarts: start the job with the agent, PROBE=1",
    }
    return Check("ptrace_scope", ok, f"kernel.yama.ptrace_scope is {scope}", remedies.get(scope, ""))


def own_seccomp(process: Tracee) -> Check:
    """A filter of system calls on our own side: it comes before all rights."""
    why = why_forbidden()
    saw = f"the kernel refuses us the call itself ({why}): a seccomp filter on our side" if why else "we may call it"
    return Check("ptrace", not why, saw, PTRACE_CALL)


def readable(process: Tracee) -> Check:
    """A process can close itself to all but root; one that ends, and a kernel thread, have nothing to read."""
    try:
        num = len(process.maps)
    except PermissionError:
        saw = "it has made itself unreadable (PR_SET_DUMPABLE), or runs with more rights than we have"
        return Check("memory", False, saw, "run as root; or start the job with the agent: PROBE=1")
    saw = f"{num} mappings" if num else "it has no memory: it is just ending, or a thread of the kernel"
    return Check("memory", num > 0, saw, "probe list shows what runs")


def namespaces(process: Tracee) -> Check:
    """Where it lives in another world than we do: paths and numbers differ there, which attach knows."""
    try:
        different = [
            kind
            for kind in ("mnt", "pid", "net", "user")
            if os.readlink(f"{process.proc}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
        ]
        root = os.readlink(f"{process.proc}/root")
    except PermissionError:
        return Check("namespaces", True, "not for us to see")
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
