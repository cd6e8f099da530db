"""ELF files: where their symbols are, and which bytes behind their segments are unused.

Runs in the attaching process and reads files only; nothing is loaded or executed.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["AARCH64", "X86_64", "Elf", "Segment", "Symbol", "auxiliary"]

X86_64 = 62
AARCH64 = 183
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PT_LOAD, _PF_X, _PF_W = 1, 1, 2
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11


@dataclass(frozen=True)
class Segment:
    """A part of the file that is mapped: addresses are the file's own."""

    offset: int
    vaddr: int
    filesz: int
    memsz: int
    executable: bool
    writable: bool

    @property
    def padding(self) -> tuple[int, int]:
        """Address and size of what lies between the segment's end and the end of its page."""
        end = self.vaddr + self.memsz
        return end, -end % mmap.PAGESIZE


@dataclass(frozen=True)
class Symbol:
    """Address, as the file counts, and size of a function."""

    address: int
    size: int


class Elf:
    """One 64-bit little-endian ELF file. Raises ValueError for another file, OSError for one that cannot be read."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is no 64-bit ELF file")
        header = _HEADER.unpack_from(self._data)
        self.machine: int = header[2]
        segments_at, self._sections_at = header[5], header[6]
        num_segments, self._num_sections = header[10], header[12]
        self.segments = tuple(self._read_segments(segments_at, num_segments))

    def _read_segments(self, at: int, count: int) -> Iterator[Segment]:
        for number in range(count):
            kind, flags, offset, vaddr, _, filesz, memsz, _ = _SEGMENT.unpack_from(
                self._data, at + number * _SEGMENT.size
            )
            if kind == _PT_LOAD:
                yield Segment(offset, vaddr, filesz, memsz, bool(flags & _PF_X), bool(flags & _PF_W))

    def bias(self, start: int, offset: int) -> int | None:
        """Return what to add to the file's addresses if its code from `offset` on is mapped at `start`."""
        for segment in self.segments:
            if segment.executable and segment.offset // mmap.PAGESIZE * mmap.PAGESIZE == offset:
                return start - segment.vaddr // mmap.PAGESIZE * mmap.PAGESIZE
        return None

    def read(self, address: int, size: int) -> bytes:
        """Return the file's bytes at `address`."""
        for segment in self.segments:
            if segment.vaddr <= address and address + size <= segment.vaddr + segment.filesz:
                at = segment.offset + address - segment.vaddr
                return self._data[at : at + size]
        return b""

    def symbols(self, wanted: Iterable[str]) -> dict[str, Symbol]:
        """Return those of the `wanted` symbols that the file defines."""
        found: dict[str, Symbol] = {}
        missing = set(wanted)
        sections = [
            _SECTION.unpack_from(self._data, self._sections_at + number * _SECTION.size)
            for number in range(self._num_sections)
        ]
        for kind in (_SHT_DYNSYM, _SHT_SYMTAB):
            for section in sections:
                if section[1] == kind and missing:
                    names = sections[section[6]]
                    found.update(self._symbols_of(section, names[4], names[5], missing))
                    missing -= set(found)
        return found

    def _symbols_of(
        self, section: tuple[int, ...], names_at: int, names_size: int, wanted: set[str]
    ) -> dict[str, Symbol]:
        # A name may be the tail of a longer one, so every place in the string table counts.
        by_offset: dict[int, str] = {}
        for name in wanted:
            text = name.encode() + b"\0"
            at = self._data.find(text, names_at, names_at + names_size)
            while at >= 0:
                by_offset[at - names_at] = name
                at = self._data.find(text, at + 1, names_at + names_size)
        found = {}
        table = self._data[section[4] : section[4] + section[5] // _SYMBOL.size * _SYMBOL.size]
        for name_at, _, _, index, value, size in _SYMBOL.iter_unpack(table):
            if name_at in by_offset and index != 0 and value != 0:
                found[by_offset[name_at]] = Symbol(value, size)
        return found


def auxiliary(kind: int) -> int:
    """Return a value of this machine's auxiliary vector."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return int(getauxval(kind))
