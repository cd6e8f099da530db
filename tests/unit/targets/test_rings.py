"""A ring is checked before it is used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probe_agent.recorder.ring.layout import FIXED
from probe_agent.recorder.ring.table import Column, Table
from probe_agent.recorder.ring.writer import RingWriter
from probe_agent.targets import Ring, RingError


class Things(Table):
    name = "test.things"
    doc = "Things."
    columns = (Column("n", "int", "", ""), Column("name", "text", "", ""), Column("size", "float", "", ""))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "test.things.ring"
    writer = RingWriter(str(path), Things, {"rank": 3}, capacity=4)
    writer.append([(n, f"thing {n}", None if n == 5 else n / 2) for n in range(6)])
    writer.close()
    return path


def test_a_row_is_decoded_with_its_text_and_its_null(path: Path) -> None:
    ring = Ring(str(path))

    assert ring.newest() == {"n": 5, "name": "thing 5", "size": None}
    assert ring.row_number(2) == {"n": 2, "name": "thing 2", "size": 1.0}
    assert ring.coordinates["rank"] == 3


def test_overwritten_and_future_rows_are_not_there(path: Path) -> None:
    ring = Ring(str(path))

    assert [ring.row_number(number) for number in (-1, 0, 1, 6)] == [None] * 4


def test_strings_that_come_later_are_found(path: Path) -> None:
    path.unlink()
    writer = RingWriter(str(path), Things, {}, capacity=4)
    ring = Ring(str(path))
    before = ring.newest()

    writer.append([(1, "late", 1.0)])

    assert before is None
    assert ring.newest() == {"n": 1, "name": "late", "size": 1.0}


@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [(0, b"X", "magic"), (8, b"\x63", "another version"), (12, b"\x07", "row"), (4096, b"}", "description")],
)
def test_a_damaged_ring_is_refused_with_its_reason(path: Path, at: int, data: bytes, reason: str) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)

    with pytest.raises(RingError, match=reason):
        Ring(str(path))


@pytest.mark.parametrize("size", [0, FIXED.size, 5000])
def test_a_cut_ring_is_refused(path: Path, size: int) -> None:
    os.truncate(path, size)

    with pytest.raises(RingError, match="short"):
        Ring(str(path))


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.ring"
    link.symlink_to(path)

    with pytest.raises(OSError, match="symbolic links"):
        Ring(str(link))
