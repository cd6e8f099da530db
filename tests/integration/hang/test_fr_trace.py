"""`probe fr-trace` on dumps that torch wrote in real jobs that hang."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from probe_cli.main import run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

PROGRAM = Path(__file__).parents[2] / "targets" / "hanging_ranks.py"
FAULTS = ["absent", "operation", "order", "healthy"]
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


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of dumps for each fault, after every job has come to a halt."""
    folder = tmp_path_factory.mktemp("dumps")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), *FAULTS],
        env={**environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not all(has_halted(folder / fault) for fault in FAULTS):
            assert time.monotonic() < deadline, "the jobs have not come to a halt"
            time.sleep(0.2)
        yield folder
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def has_halted(folder: Path) -> bool:
    """Each rank has made the calls of seven steps, and its dump is older than its last call."""
    for rank in range(4):
        path = folder / f"nccl_trace_rank_{rank}"
        entries = pickle.loads(path.read_bytes())["entries"] if path.exists() else []
        if len(entries) < 21 or path.stat().st_mtime < entries[-1]["time_created_ns"] * 1e-9 + 2:
            return False
    return True


def test_the_rank_that_has_not_come_is_named_with_the_chain_that_it_holds_up(dumps: Path) -> None:
    code, out, _ = fr_trace(dumps / "absent")

    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("rank 3 has not come to all_reduce 8 of group ")
    assert lines[0].endswith("3 ranks held up")
    assert "called by train (hanging_ranks.py:" in lines[1]


def test_the_rank_with_another_operation_is_named(dumps: Path) -> None:
    code, found = stops(dumps / "operation")

    assert code == 1
    assert [(stop["cause"], stop["ranks"]) for stop in found] == [("mismatch", [2])]
    assert "ranks 0-1,3 call all_reduce; rank 2 calls broadcast" in found[0]["sentence"]


def test_groups_in_another_order_are_a_cycle(dumps: Path) -> None:
    code, found = stops(dumps / "order")

    assert code == 1
    assert [(stop["cause"], stop["ranks"]) for stop in found] == [("cycle", [0, 1, 2, 3])]


def test_a_job_between_its_calls_does_not_hang(dumps: Path) -> None:
    code, out, _ = fr_trace(dumps / "healthy")

    assert (code, out) == (0, "no rank is in a call: the dumps of 4 ranks show no hang in a collective\n")


def test_ranks_without_a_dump_are_named_and_not_blamed_where_another_is(dumps: Path, tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        copy_dump(dumps / "absent", tmp_path, rank)

    code, out, err = fr_trace(tmp_path)

    assert code == 1
    assert out.startswith("rank 3 has not come to all_reduce 8 of group ")
    assert "no dump of rank 2" in err


def test_where_only_they_can_be_the_end_of_the_chain_the_answer_is_in_part_unknown(dumps: Path, tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        copy_dump(dumps / "absent", tmp_path, rank)

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
