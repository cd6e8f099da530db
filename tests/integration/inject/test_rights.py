"""What the kernel forbids is refused before anything is touched, with the remedy that fits."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from probe_agent import inject
from probe_agent.errors import AttachRefused
from probe_agent.inject.lock import lock
from probe_agent.inject.threads.tracee import Tracee

from .conftest import detach, in_child
from .programs import FOREVER, NOBODY, SYSTEM_PYTHON, become_nobody, child_of, needs_root, program, refused, unshare

libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x20000
_MS_REC_PRIVATE = 0x44000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_PTRACE_NUMBER = {"x86_64": 101, "aarch64": 117}[platform.machine()]


def run_in_child(work: Callable[[], object]) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(in_child(work), 0)[1])


@pytest.mark.situation("another user's, without CAP_SYS_PTRACE", "refused; the Docker and Kubernetes flags are named")
def test_another_users_process_names_what_containers_need() -> None:
    needs_root()
    with program(FOREVER, python=SYSTEM_PYTHON) as process:

        def as_nobody() -> None:
            become_nobody()
            with refused(process.pid, f"it belongs to uid 0, we are uid {NOBODY}", "docker run --cap-add=SYS_PTRACE"):
                pass
            with refused(process.pid, "uid 0", "shareProcessNamespace"):
                pass

        assert run_in_child(as_nobody) == 0


def yama(scope: int) -> None:
    """Make this process see a machine with Yama: a file at the path of its setting."""
    assert libc.unshare(_CLONE_NEWNS) == 0
    assert libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None) == 0
    assert libc.mount(b"none", b"/proc/sys/kernel", b"tmpfs", 0, None) == 0
    os.mkdir("/proc/sys/kernel/yama")
    Path("/proc/sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")


@pytest.mark.situation("ptrace_scope is 1, 2 or 3", "refused where the kernel would; 1 and 2 need CAP_SYS_PTRACE")
@pytest.mark.parametrize(
    ("scope", "remedy"),
    [(1, "sysctl kernel.yama.ptrace_scope=0"), (2, "run with CAP_SYS_PTRACE"), (3, "PROBE=1")],
)
def test_an_attach_that_yama_forbids(scope: int, remedy: str) -> None:
    needs_root()
    unshare("--mount")
    with program(FOREVER, python=SYSTEM_PYTHON, user=NOBODY, group=NOBODY, extra_groups=[]) as process:

        def as_its_user() -> None:
            yama(scope)
            become_nobody()
            with refused(process.pid, f"kernel.yama.ptrace_scope is {scope}", remedy):
                pass

        def as_root() -> None:
            yama(scope)
            if scope == 3:
                with refused(process.pid, "kernel.yama.ptrace_scope is 3", remedy):
                    pass
            else:
                detach(inject.attach(process.pid))

        assert run_in_child(as_its_user) == 0
        assert run_in_child(as_root) == 0


@pytest.mark.situation("ptrace_scope is 1, our own child", "works")
def test_yama_lets_a_parent_trace_its_child() -> None:
    needs_root()
    unshare("--mount")

    def as_parent() -> None:
        yama(1)
        become_nobody()
        with program(FOREVER, python=SYSTEM_PYTHON) as process:
            detach(inject.attach(process.pid))

    assert run_in_child(as_parent) == 0


def forbid_ptrace() -> None:
    """Act like the seccomp profile of a container: the call fails with EPERM, for this process and its children."""

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    load_number, equals, returns = 0x20, 0x15, 0x06
    allow, errno_eperm = 0x7FFF0000, 0x00050001
    code = b"".join(
        struct.pack("<HBBI", *line)
        for line in [
            (load_number, 0, 0, 0),
            (equals, 0, 1, _PTRACE_NUMBER),
            (returns, 0, 0, errno_eperm),
            (returns, 0, 0, allow),
        ]
    )
    program = Filter(4, code)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) == 0


@pytest.mark.situation("seccomp forbids ptrace on our side", "refused; the Docker and Kubernetes flags are named")
def test_a_seccomp_filter_on_our_side() -> None:
    with program(FOREVER) as process:

        def filtered() -> None:
            forbid_ptrace()
            with refused(process.pid, "a seccomp filter on our side", "docker run --cap-add=SYS_PTRACE"):
                pass
            with refused(process.pid, "Operation not permitted", "securityContext.capabilities.add: [SYS_PTRACE]"):
                pass

        assert run_in_child(filtered) == 0
        detach(inject.attach(process.pid))


@pytest.mark.situation("seccomp forbids ptrace in the target", "works: the target itself traces no process")
def test_a_seccomp_filter_around_the_target() -> None:
    with program(FOREVER, preexec_fn=forbid_ptrace) as process:
        seen = {check.name: check.saw for check in inject.examine(process.pid)}

        detach(inject.attach(process.pid))

    assert "a seccomp filter" in seen["limits"]


def cannot_lock(process: Tracee) -> None:
    with pytest.raises(AttachRefused, match="another attach to it is under way"), lock(process, 0.0):
        pass


@pytest.mark.situation("root and its user attach at once", "one after the other")
def test_attaches_by_root_and_by_its_user_exclude_each_other() -> None:
    needs_root()
    with program(FOREVER, python=SYSTEM_PYTHON, user=NOBODY, group=NOBODY, extra_groups=[]) as process:

        def as_its_user() -> None:
            become_nobody()
            cannot_lock(Tracee(process.pid))

        with lock(Tracee(process.pid), 0.0):
            assert run_in_child(as_its_user) == 0


@pytest.mark.situation("attaches from inside and outside its container at once", "one after the other")
def test_attaches_from_inside_and_outside_a_container_exclude_each_other() -> None:
    with program(FOREVER, before=unshare("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")) as outer:
        pid = child_of(outer)

        def enter() -> None:
            for kind in ("pid", "mnt"):
                with open(f"/proc/{pid}/ns/{kind}") as namespace:
                    assert libc.setns(namespace.fileno(), 0) == 0
            assert run_in_child(lambda: cannot_lock(Tracee(1))) == 0

        with lock(Tracee(pid), 0.0):
            assert run_in_child(enter) == 0


def test_an_attacher_that_was_killed_leaves_no_lock() -> None:
    with program(FOREVER) as process:
        inside, outside = os.pipe()

        def hold() -> None:
            with lock(Tracee(process.pid), 0.0):
                os.write(outside, b"!")
                signal.pause()

        holder = in_child(hold)
        os.read(inside, 1)
        cannot_lock(Tracee(process.pid))
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)

        attached = inject.attach(process.pid)
        detach(attached)

    assert [path.name for path in attached.folder.parent.iterdir() if path.name.startswith(f"{process.pid}-")] == []
