"""Interpreter of classic BPF, the programs of a seccomp filter, to learn what a filter answers.

Classic BPF as the kernel checks it for seccomp: loads of one word of the call's description, arithmetic, jumps ahead,
and a return. Runs in the attaching process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import add, and_, ge, gt, lshift, mul, or_, rshift, sub, xor

__all__ = ["described", "run"]

_INSTRUCTION = struct.Struct("<HBBI")
_DESCRIPTION = struct.Struct("<iIQ6Q")
_WORD = 0xFFFFFFFF
_MEMORY_WORDS = 16
_LOAD, _LOAD_INDEX, _STORE, _STORE_INDEX, _ALU, _JUMP, _RETURN, _COPY = range(8)
_IMMEDIATE, _ABSOLUTE, _MEMORY, _LENGTH = 0x00, 0x20, 0x60, 0x80
_NEGATE = 0x80
_ARITHMETIC: dict[int, Callable[[int, int], int]] = {
    0x00: add,
    0x10: sub,
    0x20: mul,
    0x30: lambda a, b: a // b,
    0x40: or_,
    0x50: and_,
    0x60: lshift,
    0x70: rshift,
    0x90: lambda a, b: a % b,
    0xA0: xor,
}
_COMPARES: dict[int, Callable[[int, int], bool]] = {
    0x10: lambda a, b: a == b,
    0x20: gt,
    0x30: ge,
    0x40: lambda a, b: bool(a & b),
}


def described(number: int, architecture: int, arguments: tuple[int, ...]) -> bytes:
    """Return a system call as a filter sees it: `struct seccomp_data`."""
    return _DESCRIPTION.pack(number, architecture, 0, *arguments, *(0,) * (6 - len(arguments)))


def run(program: bytes, data: bytes) -> int:
    """Return what a program returns for `data`. Raises ValueError for one that is invalid."""
    instructions = list(_INSTRUCTION.iter_unpack(program))
    a = x = at = 0
    memory = [0] * _MEMORY_WORDS
    while at < len(instructions):
        code, if_true, if_false, k = instructions[at]
        at += 1
        kind, mode, operation, other = code & 7, code & 0xE0, code & 0xF0, x if code & 0x08 else k
        if kind == _RETURN:
            return a if code & 0x18 == 0x10 else k
        if kind in (_LOAD, _LOAD_INDEX):
            value = _loaded(mode, k, data, memory)
            a, x = (value, x) if kind == _LOAD else (a, value)
        elif kind in (_STORE, _STORE_INDEX):
            memory[k] = a if kind == _STORE else x
        elif kind == _ALU:
            a = _WORD & (-a if operation == _NEGATE else _ARITHMETIC[operation](a, other))
        elif kind == _JUMP:
            at += k if operation == 0 else if_true if _COMPARES[operation](a, other) else if_false
        else:
            a, x = (x, x) if code & 0xF8 else (a, a)
    raise ValueError("a filter that returns nothing")


def _loaded(mode: int, k: int, data: bytes, memory: list[int]) -> int:
    if mode == _ABSOLUTE:
        return int.from_bytes(data[k : k + 4], "little")
    if mode == _MEMORY:
        return memory[k]
    if mode == _LENGTH:
        return len(data)
    if mode == _IMMEDIATE:
        return k
    raise ValueError(f"a filter that loads by mode {mode:#x}")
