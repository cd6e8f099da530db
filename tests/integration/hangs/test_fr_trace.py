"""`probe fr-trace` on dumps that torch wrote in real jobs that hang."""

from __future__ import annotations

import json
import os
import pickle
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from probe_cli.main import run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

Answer = dict[str, Any]  # JSON


def fr_trace(folder: Path, *options: str) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(["fr-trace", str(folder), *options])
    return code, out.getvalue(), err.getvalue()


def stops(folder: Path) -> tuple[int, list[Answer]]:
    code, out, err = fr_trace(folder, "--format", "json")
    assert out, err
    return code, json.loads(out)["stops"]


def test_the_rank_that_has_not_come_is_named_with_the_chain_that_it_holds_up(jobs: Path) -> None:
    code, out, _ = fr_trace(jobs / "absent")

    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("rank 3 has not come to all_reduce 8 of group ")
    assert lines[0].endswith("3 ranks held up")
    assert "called by hang (hanging_ranks.py:" in lines[1]


def test_the_rank_with_another_operation_is_named(jobs: Path) -> None:
    code, found = stops(jobs / "operation")

    assert code == 1
    assert [(stop["cause"], stop["ranks"]) for stop in found] == [("mismatch", [2])]
    assert "ranks 0-1,3 call all_reduce; rank 2 calls broadcast" in found[0]["sentence"]


def test_groups_in_another_order_are_a_cycle(jobs: Path) -> None:
    code, found = stops(jobs / "order")

    assert code == 1
    assert [(stop["cause"], stop["ranks"]) for stop in found] == [("cycle", [0, 1, 2, 3])]


def test_a_job_between_its_calls_does_not_hang(jobs: Path) -> None:
    code, out, _ = fr_trace(jobs / "healthy")

    assert (code, out) == (0, "no rank is in a call: the dumps of 4 ranks show no hang in a collective\n")


def test_ranks_without_a_dump_are_named_and_not_blamed_where_another_is(jobs: Path, tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        copy_dump(jobs / "absent", tmp_path, rank)

    code, out, err = fr_trace(tmp_path)

    assert code == 1
    assert out.startswith("rank 3 has not come to all_reduce 8 of group ")
    assert "no dump of rank 2" in err


def test_where_only_they_can_be_the_end_of_the_chain_the_answer_is_in_part_unknown(jobs: Path, tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        copy_dump(jobs / "absent", tmp_path, rank)

    code, out, _ = fr_trace(tmp_path)

    assert (code, out.startswith("nothing is known of ")) == (3, True), out


def copy_dump(source: Path, folder: Path, rank: int) -> None:
    name = f"nccl_trace_rank_{rank}"
    (folder / name).write_bytes((source / name).read_bytes())


def test_a_pickle_that_would_run_something_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(b"cos\nsystem\n(S'touch %s/ran'\ntR." % os.fsencode(tmp_path))

    code, _, err = fr_trace(tmp_path)

    assert code == 2
    assert "it names os.system" in err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b'{"entries": [{}]}', pickle.dumps({"entries": [7]}), b"\x80\x04x"])
def test_a_damaged_dump_is_named_with_the_reason(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "rank_0").write_bytes(data)

    code, _, err = fr_trace(tmp_path)

    assert code == 2
    assert "no Flight Recorder dump in" in err
    assert "rank_0" in err
