"""Folders of dumps: which file is of which rank, and in which format."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from probe_agent.errors import BadRequest
from probe_cli.cluster.hang.chain import Cause, stops
from probe_cli.cluster.hang.dumps import read_folder

from .flight_recorder import Dump, dumps_of
from .simulator import grid, stand_still

FILES: list[tuple[str, Callable[[Dump], bytes]]] = [
    ("nccl_trace_rank_{}", pickle.dumps),
    ("nccl_trace_rank_node07_{}", pickle.dumps),
    ("_dump_{}", lambda dump: json.dumps(dump, indent=4).encode()),
    ("rank_{}.json", lambda dump: json.dumps(dump).encode()),
    ("_{}.pickle", pickle.dumps),
    ("{}.pkl", pickle.dumps),
    ("trace_{}.json.gz", lambda dump: gzip.compress(json.dumps(dump).encode())),
    ("node3/nccl_trace_rank_{}.gz", lambda dump: gzip.compress(pickle.dumps(dump))),
]


@pytest.mark.parametrize(("name", "write"), FILES)
def test_each_name_and_format_tells_the_rank_that_has_not_come(
    tmp_path: Path, name: str, write: Callable[[Dump], bytes]
) -> None:
    seen = stand_still(grid(4, 4, 1, 2), cpu_stops={5: 4})
    for rank, dump in dumps_of(seen).items():
        path = tmp_path / name.format(rank)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(write(dump))
    (tmp_path / "fault_injection.log").write_text("rank 3 was here")
    (tmp_path / "notes.md").write_text("of run 12")

    ranks, unread = read_folder(tmp_path)

    assert (sorted(ranks), unread) == (list(range(16)), [])
    assert {(stop.cause, stop.ranks) for stop in stops(ranks)} == {(Cause.ABSENT, (5,))}


def test_calls_without_a_frame_around_them_are_those_of_torch_2_2(tmp_path: Path) -> None:
    calls = [{"seq_id": 1, "pg_id": 0, "profiling_name": "nccl:all_reduce", "state": "scheduled"}]
    for rank in range(2):
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(calls))

    ranks, _ = read_folder(tmp_path)

    assert [stop.cause for stop in stops(ranks)] == [Cause.NETWORK]


@pytest.mark.parametrize(
    "data",
    [gzip.compress(b"{}")[:-9], gzip.compress(b"{}" * 9), b"[1, 2]", b'{"entries": {}}', b"{}"],
    ids=["cut off", "two objects and more", "a list", "an object of entries", "without entries"],
)
def test_what_is_no_dump_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "rank_0.json").write_bytes(data)

    with pytest.raises(BadRequest, match="rank_0"):
        read_folder(tmp_path)
