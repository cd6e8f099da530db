"""POST /v1/query against a real recorder's rings, over a real server."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path

import pytest
from support.waiting import stop

from probe_agent.targets import Ring

from .conftest import Host

GUIDE = (
    "SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth LIMIT 10",
    "SELECT module, stage, COUNT(*) AS count, AVG(duration) AS avg_time, SUM(duration) AS total_time"
    " FROM python.torch_trace\n WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace)"
    " GROUP BY module, stage ORDER BY total_time DESC LIMIT 10;",
    "SELECT step, MAX(allocated) AS peak_memory, MAX(allocated) - MIN(allocated) AS memory_range"
    " FROM python.torch_trace\n WHERE step > (SELECT MAX(step) - 20 FROM python.torch_trace)"
    " GROUP BY step ORDER BY step;",
)
CONSISTENT = (
    "SELECT count(*), count(*) FILTER (WHERE odd = (seq % 2 = 1) AND half = seq / 2 AND name = 'name-' || (seq % 7)"
    " AND epoch_us(ts) = seq AND CASE seq % 3 WHEN 0 THEN mixed IS NULL WHEN 1 THEN isnan(mixed) ELSE mixed = seq END),"
    " count(DISTINCT seq), max(seq) - min(seq) + 1 FROM test.numbers"
)


@pytest.mark.parametrize("sql", GUIDE)
def test_statements_that_users_type_today_work_unchanged(full_host: Host, sql: str) -> None:
    answer = full_host.query(sql)

    assert "rows" in answer, answer
    assert [note for note in answer["notes"] if ": no rows: " not in note] == []


def test_every_column_comes_out_as_it_went_in(full_host: Host) -> None:
    rows = full_host.rows("SELECT rank, world_size, seq, odd, name, half, mixed, ts FROM test.numbers ORDER BY seq")

    assert len(rows) == 1000
    assert rows[3] == [0, 1, 3, True, "name-3", 1.5, None, "1970-01-01T00:00:00.000003"]
    assert rows[5][4:7] == ["name-5", 2.5, 5.0]


def test_nan_and_null_are_kept_apart(full_host: Host) -> None:
    rows = full_host.rows("SELECT mixed FROM test.numbers WHERE seq < 3 ORDER BY seq")

    assert rows == [[None], ["NaN"], [2.0]]


def test_a_reader_beside_a_hammering_writer_sees_only_whole_rows(host: Host) -> None:
    host.target(2000, "hammer")

    seen = [host.rows(CONSISTENT)[0] for _ in range(100)]

    assert all(count == good == distinct == span for count, good, distinct, span in seen), seen
    assert len({tuple(row) for row in host.rows("SELECT max(seq) FROM test.numbers")}) == 1
    assert any(count > 0 for count, *_ in seen)


def test_the_counters_of_a_ring_never_go_back(host: Host) -> None:
    host.target(200, "hammer")
    (path,) = host.base.glob("probe-*/*/test.numbers.ring")
    ring = Ring(str(path))

    heads, reserved = [], []
    for _ in range(200_000):
        heads.append(ring.head)
        reserved.append(ring.reserved)

    assert heads[0] < heads[-1]
    assert heads == sorted(heads)
    assert reserved == sorted(reserved)


def test_rows_of_all_targets_answer_when_none_is_named(host: Host) -> None:
    first, second = host.target(4096, 10), host.target(4096, 20)

    together = host.rows("SELECT pid, count(*) FROM test.numbers GROUP BY pid ORDER BY 2")
    alone = host.http.post(f"/v1/query?pid={first.pid}", json={"sql": "SELECT count(*) FROM test.numbers"}).json()

    assert together == [[first.pid, 10], [second.pid, 20]]
    assert alone["rows"] == [[10]]


def test_a_dead_target_can_still_be_queried(host: Host) -> None:
    target = host.target(4096, 10)
    target.kill()
    target.wait()

    rows = host.rows("SELECT count(*) FROM test.numbers")
    error = host.error("SELECT * FROM python.backtrace")

    assert rows == [[10]]
    assert error["kind"] == "NoAnswer"
    # Its cause is known if the server has met the target, which takes up to 2 s.
    assert error["message"].startswith(f"pid {target.pid} ")
    assert error["message"].endswith(", and left no stack")


def test_a_cut_short_ring_is_named_and_the_others_still_answer(host: Host) -> None:
    damaged, _ = host.target(4096, 10), host.target(4096, 20)
    (ring,) = host.base.glob(f"probe-*/{damaged.pid}-*/test.numbers.ring")
    with open(ring, "r+b") as file:
        file.truncate(8192)

    both = host.query("SELECT count(*) FROM test.numbers")
    alone = host.http.post(f"/v1/query?pid={damaged.pid}", json={"sql": "SELECT * FROM test.numbers"}).json()

    assert both["rows"] == [[20]]
    assert both["notes"] == [f"pid {damaged.pid}: test.numbers cannot be read: {alone_reason(alone)}"]
    assert alone["error"]["kind"] == "NoAnswer"


def alone_reason(answer: dict[str, dict[str, str]]) -> str:
    return answer["error"]["message"].rpartition("cannot be read: ")[2]


def test_a_table_without_rows_has_its_columns(full_host: Host) -> None:
    answer = full_host.query("SELECT * FROM python.torch_trace")

    names = [column["name"] for column in answer["columns"]]  # type: ignore[attr-defined]
    assert names[:6] == ["host", "pid", "rank", "world_size", "job", "step"]
    assert answer["rows"] == []


def test_rows_beyond_the_limit_are_cut_with_a_note(full_host: Host) -> None:
    answer = full_host.query("SELECT seq FROM test.numbers", max_rows=10)

    assert len(answer["rows"]) == 10  # type: ignore[arg-type]
    assert answer["truncated"] is True
    assert answer["notes"] == ["cut after 10 rows: there are more (--max-rows)"]


def test_arrow_holds_the_same_rows(full_host: Host) -> None:
    nanoarrow = pytest.importorskip("nanoarrow")
    sql = "SELECT seq, name, half, ts FROM test.numbers ORDER BY seq"

    answer = full_host.http.post(
        "/v1/query", json={"sql": sql, "max_rows": 7}, headers={"Accept": "application/vnd.apache.arrow.stream"}
    )

    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert json.loads(answer.headers["X-Probe-Notes"]) == ["cut after 7 rows: there are more (--max-rows)"]
    rows = nanoarrow.ArrayStream.from_readable(io.BytesIO(answer.content)).read_all().to_pylist()
    assert [row["seq"] for row in rows] == list(range(7))
    assert [list(row.values())[:3] for row in rows] == [row[:3] for row in full_host.rows(sql)[:7]]


def test_arrow_without_rows_has_its_columns(full_host: Host) -> None:
    nanoarrow = pytest.importorskip("nanoarrow")

    answer = full_host.http.post(
        "/v1/query",
        json={"sql": "SELECT seq, name FROM test.numbers WHERE false"},
        headers={"Accept": "application/vnd.apache.arrow.stream"},
    )

    stream = nanoarrow.ArrayStream.from_readable(io.BytesIO(answer.content))
    assert [field.name for field in stream.schema.fields] == ["seq", "name"]
    assert len(stream.read_all()) == 0


def test_values_that_json_lacks_are_text(full_host: Host) -> None:
    (row,) = full_host.rows(
        "SELECT 'inf'::DOUBLE, [1.5, '-inf'::DOUBLE], DATE '2026-01-02', 1.5::DECIMAL(4, 2), '\\x01'::BLOB,"
        " TIMESTAMPTZ '2026-01-02 03:04:05+01', {'a': 1}, INTERVAL 1 DAY"
    )

    assert row[:5] == ["Infinity", [1.5, "-Infinity"], "2026-01-02", 1.5, "01"]
    assert row[5:7] == ["2026-01-02T02:04:05.000000", {"a": 1}]


def test_describe_show_and_explain_are_answered(full_host: Host) -> None:
    described = full_host.rows("DESCRIBE test.numbers")
    shown = full_host.rows("SHOW ALL TABLES")
    explained = full_host.rows("EXPLAIN SELECT * FROM test.numbers")

    assert [row[0] for row in described][:5] == ["host", "pid", "rank", "world_size", "job"]
    assert ["test", "numbers"] in [row[1:3] for row in shown]
    assert explained[0][0] == "physical_plan"


def test_tables_say_what_is_in_them(full_host: Host) -> None:
    listed = full_host.http.get("/v1/tables").json()

    tables = {table["name"]: table for table in listed["tables"]}
    assert {"python.steps", "python.torch_trace", "python.backtrace", "python.stacks", "probe.errors"} <= set(tables)
    numbers = tables["test.numbers"]
    assert (numbers["kind"], numbers["rows"], numbers["doc"]) == ("recorded", 1000, "Columns that follow from seq.")
    assert (numbers["first"], numbers["last"]) == ("1970-01-01T00:00:00.000000", "1970-01-01T00:00:00.000999")
    assert tables["python.backtrace"]["rows"] is None
    assert {"name": "half", "type": "DOUBLE", "unit": "", "meaning": "seq / 2"} in numbers["columns"]


def test_no_target_is_an_error_and_not_an_empty_answer(host: Host, tmp_path: Path) -> None:
    error = host.error("SELECT count(*) FROM python.steps")

    assert error["kind"] == "NoAnswer"
    assert "no target" in error["message"]


def test_a_target_that_is_stopped_is_named_and_the_others_answer_on_a_live_table(host: Host) -> None:
    stopped, living = host.target(4096, 10), host.target(4096, 10)
    stop(stopped.pid)
    try:
        began = time.monotonic()
        answer = host.query("SELECT DISTINCT pid FROM process.env", timeout_s=5)
        took_s = time.monotonic() - began
        alone = host.http.post(f"/v1/query?pid={stopped.pid}", json={"sql": "FROM process.env", "timeout_s": 2}).json()
    finally:
        os.kill(stopped.pid, signal.SIGCONT)

    assert answer["rows"] == [[living.pid]], answer
    (note,) = [note for note in answer["notes"] if f"pid {stopped.pid}" in note]
    assert "stopped" in note
    assert took_s < 5
    assert "stopped" in alone["error"]["message"]
    assert str(stopped.pid) in alone["error"]["hint"]
