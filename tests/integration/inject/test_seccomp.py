"""Processes with a seccomp filter survive: its effect on our system calls is known before one is made."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from subprocess import Popen

import pytest

from probe_agent import inject
from probe_agent.errors import AttachRefused
from probe_agent.inject.attach import Attached
from probe_agent.inject.preflight.system_calls import NEEDED

from .conftest import ask, detach, in_child
from .programs import FOREVER, needs_root, program, refused

NUMBERS = {call.name: call.number for call in NEEDED}
ALLOW, KILL_PROCESS, KILL_THREAD, TRAP, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0, 0x30000, 0x50001, 0x50026
#: What the profile of Docker answers with EPERM, by the numbers of x86-64: ptrace, mount, keys, namespaces, bpf …
NOT_IN_DOCKER = {101, 134, 155, 156, 163, 165, 166, 167, 168, 169, 170, 172, 173, 175, 176, 180, 246, 248, 249, 250}
NOT_IN_DOCKER |= {272, 298, 304, 308, 310, 311, 313, 320, 321, 323, *range(428, 434)}
libc = ctypes.CDLL(None, use_errno=True)
x86_64_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")


class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def code_of(rules: Sequence[tuple[int, int]], otherwise: int) -> bytes:
    """Return a filter that returns the action of a call's number."""
    lines = [(0x20, 0, 0, 0)]
    for number, action in rules:
        lines += [(0x15, 0, 1, number), (0x06, 0, 0, action)]
    return b"".join(struct.pack("<HBBI", *line) for line in [*lines, (0x06, 0, 0, otherwise)])


def put_on(rules: Sequence[tuple[int, int]], otherwise: int = ALLOW) -> None:
    """Install a filter for the calling thread and what it starts."""
    code = code_of(rules, otherwise)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(Filter(len(code) // 8, code)), 0, 0) == 0


#: The same for a program, which puts it on itself and then says that it is ready.
PUT_ON = """
import ctypes, sys
libc = ctypes.CDLL(None)
class Filter(ctypes.Structure): _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))
def put_on(code):
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(Filter(len(code) // 8, code)), 0, 0) == 0
"""


def filtered(rules: Sequence[tuple[int, int]], otherwise: int = ALLOW) -> AbstractContextManager[Popen[str]]:
    return program(f"{PUT_ON}put_on({code_of(rules, otherwise)!r}){FOREVER}")


def limits(pid: int) -> inject.Check:
    return {check.name: check for check in inject.examine(pid)}["limits"]


@pytest.mark.situation("seccomp kills it at a call of ours (socket, clone, …)", "refused; `--risk-seccomp` goes on")
@pytest.mark.parametrize(
    ("name", "action"),
    [("socket", KILL_PROCESS), ("socket", KILL_THREAD), ("clone3", KILL_PROCESS), ("mkdir", TRAP)],
)
def test_a_filter_that_kills(name: str, action: int) -> None:
    if name not in NUMBERS:
        pytest.skip(f"this machine has no {name}")
    with filtered([(NUMBERS[name], action)]) as process:
        with refused(process.pid, f"kills it at {name}", f"probe {process.pid} inject --risk-seccomp"):
            pass

        assert process.poll() is None


@pytest.mark.situation("seccomp answers a call with an error that no attach works without", "refused")
def test_a_filter_that_refuses_sockets() -> None:
    with filtered([(NUMBERS["socket"], EPERM)]) as process:
        with refused(process.pid, "refuses socket (EPERM)", "allow these calls"):
            pass

        with pytest.raises(AttachRefused, match="Operation not permitted"):
            inject.attach(process.pid, risk_seccomp=True)
        assert process.poll() is None


@x86_64_only
@pytest.mark.situation("Docker's seccomp profile", "works: no system call of ours is refused")
def test_a_filter_as_dockers() -> None:
    allowed = [(number, ALLOW) for number in range(463) if number not in NOT_IN_DOCKER and number != 435]
    with filtered([*allowed, (435, ENOSYS)], EPERM) as process:
        seen = limits(process.pid)

        detach(inject.attach(process.pid))

        assert seen.ok, seen
        assert "kills at none" in seen.saw
        assert process.poll() is None


@pytest.mark.situation("a filter on one thread only that kills", "refused; filters belong to threads")
def test_a_filter_of_another_thread() -> None:
    rules = code_of([(NUMBERS["socket"], KILL_PROCESS)], ALLOW)
    code = PUT_ON + "\nimport threading, time\non = threading.Event()\n"
    code += f"def run():\n put_on({rules!r})\n on.set()\n time.sleep(60)\n"
    code += "threading.Thread(target=run, daemon=True).start()\non.wait()" + FOREVER
    with program(code) as process:
        with refused(process.pid, "kills it at socket", "--risk-seccomp"):
            pass

        assert process.poll() is None


def test_two_filters_count_as_the_stricter() -> None:
    twice = f"put_on({code_of([(NUMBERS['bind'], KILL_PROCESS)], ALLOW)!r})\n"
    with program(f"{PUT_ON}{twice}put_on({code_of([(NUMBERS['bind'], EPERM)], ALLOW)!r}){FOREVER}") as process:
        seen = limits(process.pid)

    assert not seen.ok
    assert "kills it at bind" in seen.saw


def without_admin(work: Callable[[], object]) -> int:
    """Run `work` in a child that may trace but not read filters."""

    def run() -> None:
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(header, data) == 0
        for index in (0, 1):
            data[index] &= ~(1 << 21)
        assert libc.capset(header, data) == 0
        work()

    return os.waitstatus_to_exitcode(os.waitpid(in_child(run), 0)[1])


@pytest.mark.situation("a seccomp filter that we may not read", "refused; root with CAP_SYS_ADMIN can")
def test_a_filter_that_cannot_be_read() -> None:
    needs_root()
    with filtered([(NUMBERS["socket"], KILL_PROCESS)]) as process:

        def attach() -> None:
            with refused(process.pid, "may kill it, and the kernel does not let us read it", "CAP_SYS_ADMIN"):
                pass

        assert without_admin(attach) == 0
        assert process.poll() is None


@pytest.mark.situation(
    "a seccomp filter that also applies to us", "tried on a child process of ours: works, or refused"
)
@pytest.mark.parametrize(("action", "works"), [(ENOSYS, True), (KILL_PROCESS, False)])
def test_a_filter_that_we_have_inherited_too(action: int, works: bool) -> None:
    needs_root()

    def attach(process: Popen[str]) -> None:
        if works:
            detach(inject.attach(process.pid))
        else:
            with refused(process.pid, "kills it at fallocate", "--risk-seccomp"):
                pass

    def inside() -> None:
        put_on([(NUMBERS["fallocate"], action)])
        with program(FOREVER) as process:
            assert without_admin(partial(attach, process)) == 0
            assert process.poll() is None

    assert os.waitstatus_to_exitcode(os.waitpid(in_child(inside), 0)[1]) == 0


def evaluated(attached: Attached, expression: str) -> str:
    """Return the recorder's answer to an expression."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(str(attached.folder / "control.sock"))
        connection.sendall(json.dumps({"op": "eval", "code": expression, "timeout": 5}).encode() + b"\n")
        return connection.makefile("rb").read().decode()


@pytest.mark.situation(
    "a seccomp filter installed after the attach kills at our calls", "our threads do not have it: keeps working"
)
def test_a_filter_that_comes_after_us() -> None:
    rules = [(NUMBERS[name], KILL_PROCESS) for name in ("socket", "accept4", "clone3", "bind") if name in NUMBERS]
    code = PUT_ON + "print('ready', flush=True)\nsys.stdin.readline()\n"
    code += f"put_on({code_of(rules, ALLOW)!r})" + FOREVER.replace("ready", "on")
    with program(code, stdin=-1) as process:
        attached = inject.attach(process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "on\n"

        assert ask(attached.folder, "stacks")["threads"]
        assert "42" in evaluated(attached, "6 * 7")
        detach(attached)

        assert process.poll() is None
