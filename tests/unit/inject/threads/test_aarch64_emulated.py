"""The aarch64 stub in an emulator: the thread gets back every register, whatever the function did to them."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from probe_agent.inject.threads import stub_aarch64
from probe_agent.inject.threads.mailbox import DONE, INTERRUPTED, NOT_INITIALISED, NUM_BYTES, Mailbox, MailboxState
from probe_agent.inject.threads.symbols import INTERPRETER, PTHREAD

unicorn = pytest.importorskip("unicorn")
arm = pytest.importorskip("unicorn.arm64_const")

CODE, DATA, STACK, FUNCTIONS, BACK = 0x10_0000, 0x20_0000, 0x30_0000, 0x40_0000, 0x50_0000
MAILBOX = Mailbox(DATA + 0x100)
RET = b"\xc0\x03\x5f\xd6"
GENERAL = [getattr(arm, f"UC_ARM64_REG_X{number}") for number in range(31)]
VECTORS = [getattr(arm, f"UC_ARM64_REG_Q{number}") for number in range(32)]
FLAGS = [arm.UC_ARM64_REG_NZCV, arm.UC_ARM64_REG_FPCR, arm.UC_ARM64_REG_FPSR]


def machine() -> Any:
    """An emulated processor with code, data and a stack, vectors of 64 bytes, and what an operating system does."""
    processor = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    processor.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
    for area in (CODE, DATA, STACK, FUNCTIONS, BACK):
        processor.mem_map(area, 0x1_0000)
    processor.reg_write(arm.UC_ARM64_REG_CPACR_EL1, 0x33_0000)
    for op1, crm, op2, value in ((6, 1, 2, 1 << 8), (6, 2, 0, 3), (4, 2, 0, 3), (0, 2, 0, 3)):  # CPTR_EL3, ZCR_ELx
        processor.reg_write(arm.UC_ARM64_REG_CP_REG, (1, crm, 3, op1, op2, value))
    return processor


def mov_w0(value: int) -> bytes:
    return (0x52800000 | value << 5).to_bytes(4, "little")


def ruin_everything(processor: Any, chance: random.Random) -> None:
    """Do what a function may do to registers that are not its own, and more."""
    for register in GENERAL[:19]:
        processor.reg_write(register, chance.getrandbits(64))
    for register in VECTORS:
        processor.reg_write(register, chance.getrandbits(128))
    processor.reg_write(arm.UC_ARM64_REG_NZCV, chance.getrandbits(4) << 28)
    processor.reg_write(arm.UC_ARM64_REG_FPSR, 0x1F)


def words(*instructions: int) -> bytes:
    return struct.pack(f"<{len(instructions)}I", *instructions)


#: index z0.b,#0,#1 and so on; ptrue p0.b,vl1 and so on; wrffr p3.b
FILL_SCALABLE = words(
    *(0x04214000 | (number % 16) << 5 | number for number in range(32)),
    *(0x2518E000 | (number % 8 + 1) << 5 | number for number in range(16)),
    0x25289000 | 3 << 5,
)
#: mov z0.b,#7 and so on; pfalse p0.b and so on; setffr
RUIN_SCALABLE = words(
    *(0x2538C0E0 | number for number in range(32)), *(0x2518E400 | number for number in range(16)), 0x252C9000
)


def scalable(processor: Any) -> bytes:
    """Return all scalable registers, written to memory by the processor; this loses p0."""
    code = stub_aarch64._scalable(save=True)
    stack = processor.reg_read(arm.UC_ARM64_REG_SP)
    processor.mem_write(BACK + 0x1000, code)
    processor.emu_start(BACK + 0x1000, BACK + 0x1000 + len(code))
    processor.reg_write(arm.UC_ARM64_REG_SP, stack)
    predicates, gap, vectors = 17 * 8, 7 * 8, 32 * 64
    data = bytes(processor.mem_read(stack - 35 * 64, 35 * 64))
    return data[:predicates] + data[predicates + gap : predicates + gap + vectors]


def execute(processor: Any, code: bytes) -> None:
    processor.mem_write(BACK + 0x1000, code)
    processor.emu_start(BACK + 0x1000, BACK + 0x1000 + len(code))


def prepared(is_initialised: int, ruin: bytes = b"") -> tuple[Any, list[int]]:
    """A processor with registers full of noise and a stub; the list receives the function's arguments."""
    processor, chance, arguments = machine(), random.Random(7), []
    guard, function = FUNCTIONS, FUNCTIONS + 0x100
    stub = stub_aarch64.stub(CODE, guard, function, (11, 22, 33, 44), MAILBOX)
    processor.mem_write(CODE, stub)
    processor.mem_write(*stub_aarch64.returns_to(CODE, len(stub), BACK + 0x10))
    processor.mem_write(guard, mov_w0(is_initialised) + RET)
    processor.mem_write(function, ruin + mov_w0(5) + RET)

    def called(processor: Any, at: int, size: int, data: object) -> None:
        arguments.extend(processor.reg_read(register) for register in GENERAL[:4])
        ruin_everything(processor, chance)

    processor.hook_add(unicorn.UC_HOOK_CODE, called, begin=function, end=function)
    for register in GENERAL:
        processor.reg_write(register, chance.getrandbits(64))
    for register in VECTORS:
        processor.reg_write(register, chance.getrandbits(128))
    processor.reg_write(arm.UC_ARM64_REG_NZCV, 0xA << 28)
    processor.reg_write(arm.UC_ARM64_REG_FPCR, 1 << 22)
    processor.reg_write(arm.UC_ARM64_REG_FPSR, 0x3)
    processor.reg_write(arm.UC_ARM64_REG_SP, STACK + 0x8000)
    return processor, arguments


def registers(processor: Any) -> dict[int, int]:
    everything = [*GENERAL, *VECTORS, *FLAGS, arm.UC_ARM64_REG_SP]
    return {register: processor.reg_read(register) for register in everything}


def seen(processor: Any) -> MailboxState:
    return MAILBOX.read(bytes(processor.mem_read(MAILBOX.at, NUM_BYTES)))


@pytest.mark.parametrize("sve", [False, True])
def test_every_register_comes_back(sve: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub_aarch64, "has_sve", lambda: sve)
    processor, arguments = prepared(is_initialised=1)
    before = registers(processor)

    processor.emu_start(CODE, BACK + 0x10)

    assert processor.reg_read(arm.UC_ARM64_REG_PC) == BACK + 0x10
    assert registers(processor) == before
    assert arguments == [11, 22, 33, 44]
    assert (seen(processor).state, seen(processor).result) == (DONE, 5)


def test_every_scalable_register_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub_aarch64, "has_sve", lambda: True)
    processor, _ = prepared(is_initialised=1, ruin=RUIN_SCALABLE)
    execute(processor, FILL_SCALABLE)
    before = scalable(processor)
    execute(processor, FILL_SCALABLE)

    processor.emu_start(CODE, BACK + 0x10)
    after = scalable(processor)

    assert len(set(before)) > 16
    assert after == before


def test_a_python_that_is_not_there_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub_aarch64, "has_sve", lambda: False)
    processor, arguments = prepared(is_initialised=0)
    before = registers(processor)

    processor.emu_start(CODE, BACK + 0x10)

    assert arguments == []
    assert registers(processor) == before
    assert (seen(processor).state, seen(processor).result) == (DONE, NOT_INITIALISED)


@pytest.mark.parametrize(("raised", "ran", "returned"), [(0, 1, 0), (7, INTERRUPTED, 0xFFFF_FFFF)])
def test_an_exception_of_the_job_is_noted_and_passed_on(raised: int, ran: int, returned: int) -> None:
    processor, names = machine(), (*INTERPRETER, *PTHREAD)
    functions = {name: FUNCTIONS + 0x100 * number for number, name in enumerate(names)}
    for name, at in functions.items():
        processor.mem_write(at, mov_w0(raised if name == "PyErr_Occurred" else 1) + RET)
    processor.mem_write(CODE, stub_aarch64.pending_body(CODE, functions, DATA, MAILBOX))
    processor.reg_write(arm.UC_ARM64_REG_SP, STACK + 0x8000)
    processor.reg_write(arm.UC_ARM64_REG_X30, BACK + 0x10)

    processor.emu_start(CODE, BACK + 0x10)

    assert seen(processor).ran == ran
    assert processor.reg_read(arm.UC_ARM64_REG_W0) == returned
