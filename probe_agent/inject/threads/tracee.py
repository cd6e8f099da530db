"""The process that is attached to: its mappings, its memory and what its threads do.

Runs in the attaching process. Reading it touches nothing; only `write_memory` changes it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from probe_agent import untrusted_files
from probe_agent.procfs import ENDED, Process

from .elf import Elf

__all__ = ["Mapping", "Module", "ThreadLook", "Tracee"]


@dataclass(frozen=True)
class Mapping:
    """A line of /proc/PID/maps."""

    start: int
    end: int
    flags: str
    offset: int
    path: str


@dataclass(frozen=True)
class ThreadLook:
    """What a thread was doing when we looked: equal looks mean that it has not moved in between."""

    state: str
    #: The number of the system call it is in, and its arguments; None outside.
    syscall: int | None
    arguments: tuple[int, ...]
    #: Where its code stands; None while it runs.
    at: int | None
    switches: int
    run_ns: int
    #: Its stack pointer; 0 while it runs.
    stack: int = 0


@dataclass(frozen=True)
class Module:
    """An ELF file as mapped into the process."""

    path: str
    elf: Elf
    bias: int


@dataclass(frozen=True)
class Tracee(Process):
    """A process that is attached to: the base class, and its memory, mappings and what its threads do."""

    _modules: dict[str, Module | None] = field(default_factory=dict, init=False, compare=False, repr=False)

    @cached_property
    def maps(self) -> list[Mapping]:
        """All mappings, read once."""
        return self.maps_now()

    def maps_now(self) -> list[Mapping]:
        """All mappings."""
        mappings = []
        for line in self.read("maps").splitlines():
            area, flags, offset, _, _, *path = line.split(None, 5)
            start, end = (int(part, 16) for part in area.split("-"))
            mappings.append(Mapping(start, end, flags, int(offset, 16), path[0] if path else ""))
        return mappings

    @cached_property
    def code_files(self) -> list[str]:
        """The files with code in it, by path."""
        return list(
            dict.fromkeys(m.path for m in self.maps if "x" in m.flags and m.path.startswith("/") and m.flags[3] == "p")
        )

    @property
    def python_version(self) -> tuple[int, int] | None:
        """Major and minor version of its Python by the names of its files; None if they do not tell."""
        for path in [*self.code_files, self.exe]:
            match = re.search(r"python(\d)\.(\d+)", path.rpartition("/")[2])
            if match:
                return int(match[1]), int(match[2])
        return None

    def module(self, path: str) -> Module | None:
        """One of the `code_files`, or the program; None when it is not mapped, cannot be read or is no ELF file."""
        if path not in self._modules:
            self._modules[path] = self._load(path)
        return self._modules[path]

    def _load(self, path: str) -> Module | None:
        # A program that was deleted or replaced since is mapped under its old name with a remark behind it.
        names = (path, path + " (deleted)")
        code = next((mapping for mapping in self.maps if mapping.path in names and "x" in mapping.flags), None)
        if code is None:
            return None
        try:
            with self._file_of(code) as descriptor:
                elf = Elf(Path(f"/proc/self/fd/{descriptor}"))
        except (OSError, ValueError):
            return None  # unreadable, or not a library: nothing in it can be used
        bias = elf.bias(code.start, code.offset)
        return None if bias is None else Module(path, elf, bias)

    @contextmanager
    def _file_of(self, mapping: Mapping) -> Iterator[int]:
        """The mapped file itself where the kernel lets us, even when it was deleted or replaced since."""
        try:
            exact = os.open(f"{self.proc}/map_files/{mapping.start:x}-{mapping.end:x}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            with untrusted_files.opened(self.from_outside(mapping.path)) as descriptor:
                yield descriptor
            return
        try:
            yield exact
        finally:
            os.close(exact)

    def look(self, tid: int) -> ThreadLook:
        """Return what one thread is doing now."""
        state = self.stat_now(tid).letter
        switches = sum(int(text) for name, text in self.status(tid).items() if name.endswith("ctxt_switches"))
        run_ns = int(self.read(f"task/{tid}/schedstat").split()[0])
        words = self.read(f"task/{tid}/syscall").split()
        if not words or words[0] == "running":
            return ThreadLook(state, None, (), None, switches, run_ns)
        syscall = int(words[0])
        arguments = tuple(int(word, 16) for word in words[1:-2])
        stack, at = (int(word, 16) for word in words[-2:])
        return ThreadLook(state, None if syscall < 0 else syscall, arguments, at, switches, run_ns, stack)

    def looks(self) -> dict[int, ThreadLook]:
        """Return what its threads are doing now, the main thread first; one that ends meanwhile is left out."""
        found = {}
        for tid in self.threads():
            try:
                found[tid] = self.look(tid)
            except ENDED:
                if tid == self.pid:
                    raise
        return found

    def read_memory(self, address: int, size: int) -> bytes:
        """Bytes of the process, without stopping it."""
        descriptor = os.open(f"{self.proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, size, address)
        finally:
            os.close(descriptor)
        if len(data) != size:  # the kernel's answer for a process that has no memory any more
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return data

    def write_memory(self, address: int, data: bytes) -> None:
        """Change bytes of the process, also where it may not write itself."""
        descriptor = os.open(f"{self.proc}/mem", os.O_WRONLY | os.O_CLOEXEC)
        try:
            num_written = os.pwrite(descriptor, data, address)
        finally:
            os.close(descriptor)
        if num_written != len(data):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
