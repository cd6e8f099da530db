"""Facts read from outside about a process match its own: tried on the process that runs the tests."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

import pytest

from probe_agent.errors import AttachRefused
from probe_agent.inject.threads import code_caves, elf, symbols
from probe_agent.inject.threads.code_caves import find_caves
from probe_agent.inject.threads.mailbox import DONE, ENTERED, FREE, NUM_BYTES, PENDING_CALL, QUIET_THREAD, MailboxState
from probe_agent.inject.threads.tracee import Module, Tracee


@pytest.fixture
def process() -> Tracee:
    return Tracee(os.getpid())


def test_functions_are_where_the_dynamic_loader_has_them(process: Tracee) -> None:
    known = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in symbols.INTERPRETER}
    libc = ctypes.CDLL(None)
    known |= {name: ctypes.cast(getattr(libc, name), ctypes.c_void_p).value for name in symbols.PTHREAD}

    found = symbols.addresses(process, symbols.INTERPRETER + symbols.PTHREAD)

    assert found == known


def test_a_function_that_is_not_what_the_file_has_is_refused(process: Tracee, monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Callable[[Tracee, int, int], bytes] = Tracee.read_memory
    monkeypatch.setattr(Tracee, "read_memory", lambda *place: bytes(len(honest(*place))))

    with pytest.raises(AttachRefused, match="is not what"):
        symbols.addresses(process, symbols.INTERPRETER)


def test_places_hold_nothing_and_can_be_run_and_written(process: Tracee) -> None:
    found = find_caves(process)

    assert len(found) > 3
    assert len({cave.mailbox.at for cave in found}) == len({cave.code for cave in found}) == len(found)
    for cave in found:
        assert not any(process.read_memory(cave.mailbox.at, NUM_BYTES))
        flags = {m.flags for m in process.maps if m.start <= cave.code < m.end}
        assert flags == {"r-xp"}
        assert cave.read(process).state == FREE
        assert cave.is_free(process)


def test_no_place_is_in_the_dynamic_loader(process: Tracee) -> None:
    loader = [m for m in process.maps if m.path.rpartition("/")[2].startswith("ld-")]

    found = find_caves(process)

    assert loader
    assert not [cave for cave in found for m in loader if m.start <= cave.code < m.end]


OWN = threading.get_native_id()
GONE = 4_194_303


@pytest.mark.parametrize(
    ("seen", "waits"),
    [
        (MailboxState(ENTERED, OWN, 0, PENDING_CALL, 0, 0, 0, 0), True),
        (MailboxState(DONE, OWN, 0, PENDING_CALL, 0, 0, 0, 0), True),
        (MailboxState(DONE, OWN, -1, PENDING_CALL, 0, 0, 0, 0), False),  # the queue was full
        (MailboxState(DONE, OWN, 0, PENDING_CALL, 1, 0, 0, 0), False),  # it has run
        (MailboxState(DONE, GONE, 0, PENDING_CALL, 0, 0, 0, 0), False),  # a parent's, seen in its forked child
        (MailboxState(DONE, GONE, 0, QUIET_THREAD, 0, OWN, 0, 0), True),
        (MailboxState(DONE, OWN, 0, QUIET_THREAD, 0, GONE, 0, 0), False),
        (MailboxState(FREE, 0, 0, 0, 0, 0, 0, 0), False),
    ],
)
def test_a_thread_that_waits_for_the_gil_is_recognized_by_its_frames(
    process: Tracee, seen: MailboxState, waits: bool
) -> None:
    assert code_caves._waits(process, seen) is waits


def test_a_file_that_is_no_program_is_a_value_error(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "text")
    with open(path, "w") as file:
        file.write("no program" * 20)

    with pytest.raises(ValueError, match="no 64-bit ELF file"):
        elf.Elf(path)


def test_the_module_of_a_file_is_read_once(process: Tracee) -> None:
    first, second = (process.module(process.exe) for _ in range(2))

    assert isinstance(first, Module)
    assert first is second
