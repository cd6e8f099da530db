"""`--by collective`: the bytes, their time, and the rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probe_cli.cluster.compare.by import WAYS
from probe_cli.cluster.compare.facts import Facts

from .made import COMMUNICATION_S, job

MIB = 1024.0 * 1024.0


def waited_for(facts: list[Facts], **more: float) -> list[Facts]:
    """Return the same job with its calls made by Python: each waits until its collective is over."""

    def told(fact: Facts) -> Facts:
        calls = fact.calls
        num = len(calls["step"])
        filled = {name: np.full(num, value) for name, value in more.items()}
        wait = calls["ended"] - calls["start"]
        return replace(fact, calls={**calls, "wait": wait, "by_cpp": np.zeros(num, bool), **filled})

    return [told(fact) for fact in facts]


def rows_of(facts: list[Facts]) -> list[dict[str, object]]:
    comparison = WAYS["collective"].compare(facts, 100)
    assert len(comparison.columns) == len(comparison.types)
    return [dict(zip(comparison.columns, row, strict=True)) for row in comparison.rows]


def late(rank: int, step: int) -> dict[str, float]:
    return {"forward": 0.030} if rank == 1 else {}


def test_a_transfer_begins_when_the_last_rank_has_come() -> None:
    rows = rows_of(waited_for(job(4, 100, late)))

    assert [row["transfer"] for row in rows] == [pytest.approx(COMMUNICATION_S, rel=0.01)] * 4
    assert max(float(str(row["waited"])) for row in rows) > 0.025


def test_calls_known_only_to_cpp_have_no_transfer() -> None:
    assert [row["transfer"] for row in rows_of(job(4, 100, late))] == [None] * 4


def test_a_later_wait_gives_no_transfer() -> None:
    facts = waited_for(job(4, 100))
    calls = facts[2].calls
    facts[2] = replace(facts[2], calls={**calls, "start": calls["start"] - 0.005})

    told = {row["rank"]: row["transfer"] for row in rows_of(facts)}

    assert [rank for rank, transfer in told.items() if transfer is None] == [2]


@pytest.mark.parametrize(
    ("op", "factor"), [("all_reduce", 1.5), ("all_gather", 3.0), ("reduce_scatter", 0.75), ("all_to_all", 0.75)]
)
def test_bandwidth_counts_the_time_without_waits(op: str, factor: float) -> None:
    facts = waited_for(job(4, 100, late), bytes=8 * MIB)
    facts = [replace(it, calls={**it.calls, "op": np.full(len(it.calls["op"]), op, object)}) for it in facts]

    for row in rows_of(facts):
        assert row["mebibytes"] == pytest.approx(8.0, rel=0.02)
        assert row["bandwidth"] == pytest.approx(factor * 8.0 / COMMUNICATION_S, rel=0.02)


def test_a_broadcast_has_bytes_and_no_bandwidth() -> None:
    facts = waited_for(job(4, 100), bytes=8 * MIB)
    facts = [replace(it, calls={**it.calls, "op": np.full(len(it.calls["op"]), "broadcast", object)}) for it in facts]

    assert {row["bandwidth"] for row in rows_of(facts)} == {None}


def test_without_bytes_there_is_no_column_of_them() -> None:
    assert "mebibytes" not in rows_of(waited_for(job(4, 100)))[0]
