"""The bytes of the stubs are the intended instructions, for both processors."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from probe_agent.inject import payload
from probe_agent.inject.threads import stub_aarch64, stub_x86_64
from probe_agent.inject.threads.mailbox import NUM_BYTES, Mailbox
from probe_agent.inject.threads.symbols import INTERPRETER, PTHREAD
from probe_agent.inject.threads.tracee import Tracee

capstone = pytest.importorskip("capstone")

AT = 0x7F00_0000_1000
MAILBOX = Mailbox(AT + 0x20_0000)
TEXT = AT + 0x380
FUNCTIONS = {name: 0x7F00_1000_0000 + 0x1000 * number for number, name in enumerate(INTERPRETER + PTHREAD)}
GUARD, CALL = FUNCTIONS["Py_IsInitialized"], FUNCTIONS["pthread_create"]
MACHINES = pytest.mark.parametrize("machine", [stub_x86_64, stub_aarch64], ids=["x86_64", "aarch64"])


def listing(machine: ModuleType, code: bytes) -> list[str]:
    """Return the instructions, one per line; fail on an invalid byte."""
    if machine is stub_x86_64:
        reader = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    else:
        reader = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    found = list(reader.disasm(code, AT))
    assert sum(one.size for one in found) == len(code)
    return [f"{one.mnemonic} {one.op_str}".strip() for one in found]


def code_of(machine: ModuleType, code: bytes) -> bytes:
    """Return a stub without the part that `returns_to` fills in."""
    return code[:-8] if machine is stub_x86_64 else code[:-4]


@MACHINES
def test_a_stub_takes_from_the_stack_in_reverse_what_it_put_there(machine: ModuleType) -> None:
    lines = listing(machine, code_of(machine, machine.stub(AT, GUARD, CALL, (1, 2, 3, 4), MAILBOX)))

    if machine is stub_x86_64:
        pushed = [line.split()[1] for line in lines if line.startswith("push ")]
        popped = [line.split()[1] for line in lines if line.startswith("pop ")]
        assert "rsp" not in pushed
        assert len(pushed) == 15
        order = [line.split()[0] for line in lines if line.startswith(("pushf", "xsave64", "xrstor64", "popf"))]
        assert order == ["pushfq", "xsave64", "xrstor64", "popfq"]
    else:
        popped = [line.split("[")[0].split(None, 1)[1] for line in lines if line.startswith("ldp x")]
        pushed = [line.split("[")[0].split(None, 1)[1] for line in lines if line.startswith("stp x")]
        assert len(pushed) == 18
    assert popped == pushed[::-1]


@MACHINES
def test_a_stub_calls_the_guard_first_and_the_function_with_its_arguments(machine: ModuleType) -> None:
    lines = listing(machine, code_of(machine, machine.stub(AT, GUARD, 0x1234_5678_9ABC_DEF0, (0x11, 0x22), MAILBOX)))

    if machine is stub_x86_64:
        first, second = (number for number, line in enumerate(lines) if line == "call rax")
        assert lines[first - 1] == f"movabs rax, {GUARD:#x}"
        assert lines[second - 3 : second] == [
            "movabs rdi, 0x11",
            "movabs rsi, 0x22",
            "movabs rax, 0x123456789abcdef0",
        ]
    else:
        first, second = (number for number, line in enumerate(lines) if line == "blr x16")
        assert lines[second - 4 : second] == [
            "mov x16, #0xdef0",
            "movk x16, #0x9abc, lsl #16",
            "movk x16, #0x5678, lsl #32",
            "movk x16, #0x1234, lsl #48",
        ]
    assert first < second


@MACHINES
def test_a_stub_ends_where_the_thread_came_from(machine: ModuleType) -> None:
    stub = machine.stub(AT, GUARD, CALL, (), MAILBOX)
    where, what = machine.returns_to(AT, len(stub), AT + 0x12_3458)

    whole = bytearray(stub)
    whole[where - AT : where - AT + len(what)] = what

    if machine is stub_x86_64:
        assert listing(machine, bytes(whole[-14:-8])) == ["jmp qword ptr [rip]"]
        assert int.from_bytes(whole[-8:], "little") == AT + 0x12_3458
    else:
        assert listing(machine, bytes(whole))[-1] == f"b #{AT + 0x12_3458:#x}"


def test_on_aarch64_a_place_too_far_away_is_not_branched_from() -> None:
    with pytest.raises(stub_aarch64.Busy, match="too far"):
        stub_aarch64.returns_to(AT, 400, AT + (1 << 28))


@MACHINES
@pytest.mark.parametrize("body", ["pending_body", "thread_body"])
def test_a_body_calls_what_it_should_in_order_and_returns(machine: ModuleType, body: str) -> None:
    lines = listing(machine, getattr(machine, body)(AT, FUNCTIONS, TEXT, MAILBOX))

    called = [
        name
        for line, call in pairwise(lines)
        for name, address in FUNCTIONS.items()
        if call == "call rax" and line == f"movabs rax, {address:#x}"
    ]
    running = ["PyDict_New", "PyRun_String", "PyDict_Size", "PyErr_Clear", "Py_DecRef", "Py_DecRef"]
    around = ["pthread_self", "pthread_detach", "PyGILState_Ensure"], ["PyErr_Clear", "PyGILState_Release"]
    if machine is stub_x86_64:
        assert called == ([*running, "PyErr_Occurred"] if body == "pending_body" else around[0] + running + around[1])
    else:
        assert lines.count("blr x16") == (7 if body == "pending_body" else 11)
    assert lines[-1] == "ret"


@MACHINES
@pytest.mark.parametrize("sve", [False, True])
def test_everything_fits_into_a_place(machine: ModuleType, sve: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub_aarch64, "has_sve", lambda: sve)
    folder = Path("/dev/shm/probe-4294967294/4194304-99999999999999")
    text = payload.lines(Tracee(os.getpid()), folder, "pending call")

    stub = machine.stub(AT, GUARD, CALL, (1, 2, 3, 4), MAILBOX)
    body = machine.thread_body(AT, FUNCTIONS, TEXT, MAILBOX)

    assert len(stub) + len(body) + 16 + len(text) <= machine.SIZE
    assert len(MAILBOX.armed(1, 1, AT)) == NUM_BYTES
