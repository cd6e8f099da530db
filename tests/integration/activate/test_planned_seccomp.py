"""PROBE=1 under a seccomp filter that was put on before Python started."""

from __future__ import annotations

import struct
import sys

import pytest

from probe_agent.inject.preflight.system_calls import NEEDED

from .conftest import WAITS, started, wait_for_target

NUMBERS = {call.name: call.number for call in NEEDED}
#: No program here makes this call.
LSM_SET_SELF_ATTR = 460
KILL_PROCESS, TRAP, ALLOW = 0x80000000, 0x30000, 0x7FFF0000
#: Puts on a filter and becomes another program.
UNDER_A_FILTER = """
import ctypes, os, sys
class Filter(ctypes.Structure): _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))
code, libc = bytes.fromhex(sys.argv[1]), ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Filter(len(code) // 8, code)), 0, 0) == 0
os.execve(sys.executable, [sys.executable, *sys.argv[2:]], {**os.environ, "PROBE": "1"})
"""


def under(number: int, action: int) -> tuple[str, ...]:
    """Return the command of a program for whose system call of this number a filter takes an action."""
    lines = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, action), (0x06, 0, 0, ALLOW))
    code = b"".join(struct.pack("<HBBI", *line) for line in lines)
    return sys.executable, "-c", UNDER_A_FILTER, code.hex(), "-c", WAITS


@pytest.mark.situation(
    "PROBE=1 under a seccomp filter that kills at a call of ours", "the job runs, without a recorder"
)
@pytest.mark.parametrize(("name", "action"), [("socket", KILL_PROCESS), ("accept4", KILL_PROCESS), ("flock", TRAP)])
def test_a_filter_that_kills(name: str, action: int) -> None:
    with started(*under(NUMBERS[name], action), PROBE="0") as process:
        out, err = process.communicate("", timeout=60)

    assert out.strip() == str(process.pid)
    assert process.returncode == 0
    assert f"the recorder is not started: the seccomp filter of this process kills it at {name}" in err


def test_a_filter_that_kills_at_none_of_our_calls() -> None:
    with started(*under(LSM_SET_SELF_ATTR, KILL_PROCESS), PROBE="0") as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(process.pid)

        wait_for_target(process.pid)
        out, err = process.communicate("", timeout=60)

    assert (out, err, process.returncode) == ("", "", 0)
