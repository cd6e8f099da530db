"""The ring file holds the written rows in its declared layout."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from threading import Event, Thread

import pytest

from probe_agent.recorder.ring import writer
from probe_agent.recorder.ring.buffer import RowBuffer
from probe_agent.recorder.ring.layout import COUNTERS, COUNTERS_AT, FIXED, SCHEMA_AT, STRING_LENGTH
from probe_agent.recorder.ring.table import NULL_FLOAT, Column, Table
from probe_agent.recorder.ring.writer import RingWriter, close_half_made


class Things(Table):
    name = "test.things"
    doc = "Things."
    columns = (
        Column("number", "int", "", "a number"),
        Column("name", "text", "", "a name"),
        Column("weight", "float", "kg", "a weight"),
        Column("good", "bool", "", "or not"),
    )


class File:
    """A ring file as any reader would see it."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        (_, _, self.row_size, self.capacity, self.schema_size, self.strings_at, _, self.rows_at) = FIXED.unpack_from(
            self.data
        )
        self.reserved, self.head, self.strings_used = COUNTERS.unpack_from(self.data, COUNTERS_AT)

    @property
    def schema(self) -> dict[str, object]:
        return json.loads(self.data[SCHEMA_AT : SCHEMA_AT + self.schema_size])

    @property
    def texts(self) -> list[str | None]:
        texts: list[str | None] = [None]
        at, end = self.strings_at, self.strings_at + self.strings_used
        while at < end:
            (length,) = STRING_LENGTH.unpack_from(self.data, at)
            at += STRING_LENGTH.size
            texts.append(self.data[at : at + length].decode())
            at += length
        return texts

    def row(self, number: int) -> tuple[object, ...]:
        return struct.unpack_from(
            Things.row_struct().format, self.data, self.rows_at + number % self.capacity * self.row_size
        )


def test_rows_come_back_as_they_were_written(tmp_path):
    writer = RingWriter(str(tmp_path / "ring"), Things, {"rank": 3}, capacity=8)

    writer.append([(1, "a", 1.5, True), (2, None, None, False), (3, "a", math.nan, True)])

    file = File(tmp_path / "ring")
    assert file.texts == [None, "a"]
    assert file.row(0) == (1, 1, 1.5, True)
    assert file.row(1) == (2, 0, NULL_FLOAT, False)
    assert math.isnan(file.row(2)[2])
    assert file.schema["coordinates"]["rank"] == 3
    assert [column["unit"] for column in file.schema["columns"]] == ["", "", "kg", ""]


def test_the_newest_rows_are_kept_when_the_ring_is_full(tmp_path):
    writer = RingWriter(str(tmp_path / "ring"), Things, {}, capacity=4)

    for start in (0, 3, 6, 20):
        writer.append([(start + i, None, 0.0, True) for i in range(3 if start < 20 else 9)])

    file = File(tmp_path / "ring")
    assert (file.reserved, file.head) == (18, 18)
    assert [file.row(number)[0] for number in range(14, 18)] == [25, 26, 27, 28]


def test_texts_that_find_no_room_are_null_and_do_not_shift_the_others(tmp_path):
    writer = RingWriter(str(tmp_path / "ring"), Things, {}, capacity=4, strings_bytes=64)

    writer.append(
        [(1, "short", 0.0, True), (2, "long" * 50, 0.0, True), (3, "tiny", 0.0, True), (4, "short", 0.0, True)]
    )

    file = File(tmp_path / "ring")
    assert [file.row(number)[1] for number in range(4)] == [1, 0, 0, 1]
    assert file.texts == [None, "short"]


def test_the_file_is_for_its_user_alone_and_never_replaced(tmp_path):
    RingWriter(str(tmp_path / "ring"), Things, {}).append([(1, "a", 1.5, True)])

    assert (tmp_path / "ring").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        RingWriter(str(tmp_path / "ring"), Things, {})
    assert File(tmp_path / "ring").head == 1
    assert [path.name for path in tmp_path.iterdir()] == ["ring"]


def test_rows_wait_for_their_ring_and_keep_their_texts(tmp_path):
    buffer = RowBuffer(Things)
    buffer.rows.append((1, buffer.number("early"), 0.0, True))
    buffer.flush()

    buffer.writer = RingWriter(str(tmp_path / "ring"), Things, {}, capacity=4)
    buffer.rows.append((2, buffer.number("late"), 0.0, True))
    buffer.flush()

    file = File(tmp_path / "ring")
    assert [file.texts[file.row(number)[1]] for number in range(2)] == ["early", "late"]
    assert not buffer.rows


@pytest.mark.parametrize("held_in", ["posix_fallocate", "rename"])
def test_a_child_forked_while_a_ring_is_made_has_none_of_it(
    held_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = Event(), Event()
    call = getattr(os, held_in)

    def held(*arguments: object) -> None:
        call(*arguments)
        inside.set()
        assert go_on.wait(10)

    monkeypatch.setattr(writer.os, held_in, held)
    buffer = RowBuffer(Things)
    path = tmp_path / "test.things.ring"
    making = Thread(target=buffer.flush, args=(lambda buffer: RingWriter(str(path), buffer.table, {}),))
    making.start()
    assert inside.wait(10)
    is_told = buffer.may_be_half_made
    child = os.fork()
    if not child:
        close_half_made(str(tmp_path))
        kept = [link for link in map(link_of, os.listdir("/proc/self/fd")) if str(tmp_path) in link]
        os._exit(len(kept) + (str(tmp_path) in Path("/proc/self/maps").read_text()))
    _, status = os.waitpid(child, 0)
    go_on.set()
    making.join()

    assert is_told
    assert os.waitstatus_to_exitcode(status) == 0
    assert buffer.writer is not None  # the parent's is as it was
    buffer.flush()
    buffer.close()


def link_of(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        return ""
