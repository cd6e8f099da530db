"""The database that combines answers does not trust the hosts' data."""

from __future__ import annotations

import random
from collections.abc import Iterator

import duckdb
import pytest

from probe_agent.sql.engine.statement import arrow_stream
from probe_agent.sql.merging import MergedDatabase
from probe_agent.wire import QueryRequest

COLUMNS = {"a": "BIGINT", "t": "VARCHAR", "d": "DOUBLE", "l": "BIGINT[]", "o": "BOOLEAN", "n": "VARCHAR"}


@pytest.fixture
def database() -> Iterator[MergedDatabase]:
    database = MergedDatabase(QueryRequest("SELECT 1"))
    database.create("test.rows", COLUMNS)
    yield database
    database.close()


@pytest.fixture(scope="module")
def stream() -> bytes:
    sql = "SELECT i a, 'text' || i AS t, i / 3 AS d, [i] AS l, i % 2 = 0 AS o, NULL::VARCHAR AS n FROM range(40) r(i)"
    return b"".join(arrow_stream(duckdb.connect().sql(sql), QueryRequest(sql))[0])


def damaged(stream: bytes, draw: random.Random) -> bytes:
    """Return `stream` truncated, or with a few wrong bytes or a wrong length."""
    data = bytearray(stream)
    at = draw.randrange(len(data) // 8) * 8
    kind = draw.randrange(4)
    if kind == 0:
        return bytes(data[:at])
    if kind == 1:
        data[at] = draw.randrange(256)
    elif kind == 2:
        data[at : at + 8] = draw.choice((-1, 2**62, 10**6, 0)).to_bytes(8, "little", signed=True)
    else:
        data[at : at + 4] = draw.choice((-1, 2**31 - 1, 10**5)).to_bytes(4, "little", signed=True)
    return bytes(data)


def count(database: MergedDatabase) -> int:
    return int(str(database.value("SELECT count(*)::VARCHAR FROM test.rows")[0]))


def test_damaged_streams_are_named_and_leave_no_row(database: MergedDatabase, stream: bytes) -> None:
    draw = random.Random(2)
    # A body of -1 bytes: with nanoarrow 0.9 this ends the process that decodes it.
    streams = [stream[:408] + b"\xff" * 8 + stream[416:], *(damaged(stream, draw) for _ in range(600)), stream]

    num_rows, malformed = database.fill([("test.rows", list(COLUMNS.items()), each) for each in streams])

    assert malformed[0] == "its rows cannot be decoded"
    assert len(streams) - 1 not in malformed
    assert len(malformed) > 100
    assert count(database) == num_rows["test.rows"] >= 40


def test_a_stream_that_does_not_fit_costs_its_own_rows(database: MergedDatabase, stream: bytes) -> None:
    columns = list(COLUMNS.items())
    other = b"".join(arrow_stream(duckdb.connect().sql("SELECT 'a' AS a, 2 AS b"), QueryRequest("SELECT 1"))[0])
    words = b"".join(arrow_stream(duckdb.connect().sql("SELECT 'many' AS a"), QueryRequest("SELECT 1"))[0])
    parts = [("test.rows", columns, each) for each in (stream, stream[:100], other, stream)]

    num_rows, malformed = database.fill([*parts, ("test.rows", columns[:1], words)])

    assert (count(database), num_rows, list(malformed)) == (80, {"test.rows": 80}, [1, 2, 4])
    assert malformed[2] == "2 columns came, 6 were asked for"
    assert malformed[4].startswith("its rows cannot be read: ")


def test_streams_of_other_columns_go_in_each_as_it_is(database: MergedDatabase, stream: bytes) -> None:
    sql = "SELECT i::INTEGER AS number, 'other' AS word, i::FLOAT, [], NULL, i FROM range(3) r(i)"
    other = b"".join(arrow_stream(duckdb.connect().sql(sql), QueryRequest(sql))[0])
    columns = list(COLUMNS.items())

    filled = database.fill([("test.rows", columns, each) for each in (stream, other, stream, other)])

    assert filled == ({"test.rows": 86}, {})
    assert count(database) == 86
    assert database.value("SELECT string_agg(DISTINCT n, ',' ORDER BY n) FROM test.rows") == ["0,1,2"]


def test_a_type_from_a_host_is_a_type_or_nothing(database: MergedDatabase) -> None:
    types = ["BIGINT", "DECIMAL(10,2)", "TIMESTAMP WITH TIME ZONE", "VARCHAR[]", "NONSENSE", "BIGINT); DROP TABLE x"]

    assert [kind for kind in types if database.is_type(kind)] == types[:4]


def test_a_database_that_waits_for_the_next_statement_is_empty(stream: bytes) -> None:
    request = QueryRequest("SELECT 1", memory_mb=77)
    first = MergedDatabase(request)
    first.create("test.rows", COLUMNS)
    first.fill([("test.rows", list(COLUMNS.items()), stream)])
    first.close()

    second = MergedDatabase(request)

    assert second.value("SELECT table_name FROM information_schema.tables") == []
    second.close()
