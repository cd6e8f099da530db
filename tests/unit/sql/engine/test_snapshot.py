"""A snapshot shows whole rows in order, and knows if it was overtaken."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe_agent.recorder.ring.table import Column, Table
from probe_agent.recorder.ring.writer import RingWriter
from probe_agent.sql.engine.snapshot import Snapshot
from probe_agent.targets import Ring

CAPACITY = 32


class Counted(Table):
    name = "test.counted"
    doc = "Counted."
    columns = (Column("flag", "bool", "", ""), Column("n", "int", "", ""), Column("name", "text", "", ""))


class Pair:
    def __init__(self, path: Path) -> None:
        self.writer = RingWriter(str(path), Counted, {}, capacity=CAPACITY)
        self.ring = Ring(str(path))
        self.written = 0

    def write(self, count: int) -> None:
        self.writer.append([(n % 2 == 1, n, "x") for n in range(self.written, self.written + count)])
        self.written += count


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path / "ring")


def numbers(snapshot: Snapshot) -> list[int]:
    return [int(n) for segment in snapshot.segments() for n in segment["n"]]


def test_an_empty_ring_has_no_rows(pair: Pair) -> None:
    assert numbers(Snapshot.in_place(pair.ring)) == []
    assert numbers(Snapshot.copied(pair.ring)) == []
    assert not Snapshot.in_place(pair.ring).overtaken()


@pytest.mark.parametrize("count", [1, CAPACITY - 3, CAPACITY - 2, CAPACITY, CAPACITY + 1, 2 * CAPACITY, 100])
def test_rows_are_in_order_and_a_full_ring_leaves_out_its_oldest_sixteenth(pair: Pair, count: int) -> None:
    pair.write(count)

    in_place, copied = Snapshot.in_place(pair.ring), Snapshot.copied(pair.ring)

    assert numbers(in_place) == list(range(max(0, count - CAPACITY + 2), count))
    assert numbers(copied) == list(range(max(0, count - CAPACITY), count))


def test_rows_lie_in_the_ring_itself_and_are_aligned(pair: Pair) -> None:
    pair.write(10)

    (segment,) = Snapshot.in_place(pair.ring).segments()

    assert not segment["n"].flags.owndata
    assert segment["n"].flags.aligned


def test_a_snapshot_knows_when_the_writer_came_too_close(pair: Pair) -> None:
    pair.write(CAPACITY)
    snapshot = Snapshot.in_place(pair.ring)

    pair.write(2)
    after_the_margin = snapshot.overtaken()
    pair.write(1)

    assert not after_the_margin
    assert snapshot.overtaken()


def test_a_copy_is_not_touched_by_what_comes_later(pair: Pair) -> None:
    pair.write(CAPACITY)
    copied = Snapshot.copied(pair.ring)

    pair.write(CAPACITY)

    assert numbers(copied) == list(range(CAPACITY))
