"""An answer as an Arrow stream: its length is limited, and a want of memory is told as one."""

from __future__ import annotations

import subprocess
import sys

import duckdb
import nanoarrow as na  # type: ignore[import-untyped]
import pytest

from probe_agent.errors import LimitReached
from probe_agent.sql.engine.request import Pieces
from probe_agent.sql.engine.statement import arrow_stream
from probe_agent.wire import QueryRequest

WITHOUT_MEMORY = """
import resource
from pathlib import Path

import duckdb

from probe_agent.sql.engine.statement import arrow_stream
from probe_agent.wire import QueryRequest

rows = duckdb.connect().sql("SELECT repeat('x', 1000) AS text FROM range(1000000)")
arrow_stream(rows, QueryRequest("SELECT 1", max_rows=10))
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (MEBIBYTES << 20),) * 2)
try:
    arrow_stream(rows, QueryRequest("SELECT 1", max_rows=10**9, memory_mb=100_000))
except (MemoryError, duckdb.OutOfMemoryException):
    print("no memory")
"""


def read(pieces: Pieces) -> list[dict[str, object]]:
    return list(na.ArrayStream.from_readable(b"".join(pieces)).read_all().to_pylist())


def test_an_answer_has_its_rows_and_whether_there_are_more() -> None:
    rows = duckdb.connect().sql("SELECT range AS a FROM range(300000)")

    pieces, truncated = arrow_stream(rows, QueryRequest("SELECT 1", max_rows=200_000))

    assert [row["a"] for row in read(pieces)] == list(range(200_000))
    assert truncated
    assert read(arrow_stream(duckdb.connect().sql("SELECT 1 AS a WHERE false"), QueryRequest("SELECT 1"))[0]) == []


def test_an_answer_longer_than_the_memory_of_its_query_is_refused() -> None:
    rows = duckdb.connect().sql("SELECT repeat('x', 1000) AS text FROM range(2000)")

    with pytest.raises(LimitReached, match="longer than the 1 MB"):
        arrow_stream(rows, QueryRequest("SELECT 1", max_rows=10_000, memory_mb=1))


@pytest.mark.parametrize("mebibytes", [20, 140, 200, 300, 450])
def test_a_want_of_memory_in_any_part_is_told_as_one(mebibytes: int) -> None:
    program = WITHOUT_MEMORY.replace("MEBIBYTES", str(mebibytes))

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("no memory\n", "")
