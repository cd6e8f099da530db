"""A report that somebody has sent: damaged, changed or a bomb, it is refused with a reason and never followed."""

from __future__ import annotations

import asyncio
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from probe_agent.errors import BadRequest, ProbeError
from probe_agent.wire import QueryRequest, QueryResult
from probe_cli.client import open_client
from probe_cli.endpoint import Report, parse_endpoint
from probe_cli.report_file import ReportFile

INFO = {"pid": 7, "rank": 0}
COLUMN = {"name": "step", "type": "BIGINT", "unit": "", "meaning": ""}


def report(path: Path, files: dict[str, bytes] | None = None, **head: Any) -> str:
    """Write a report and return its path; `head` replaces parts of report.json."""
    whole: dict[str, Any] = {
        "format": "probe-report",
        "version": 1,
        "targets": [{"folder": "ranks/0-7", "info": INFO}],
        "tables": [{"name": "python.steps", "columns": [COLUMN]}],
        "findings": {},
        "left_out": [],
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("report.json", json.dumps(whole | head))
        for name, content in (files or {}).items():
            archive.writestr(name, content)
    return str(path)


def query(path: str, sql: str) -> QueryResult:
    async def ask() -> QueryResult:
        async with open_client(Report(path)) as client:
            return await client.send(QueryResult, "POST", "/v1/query", QueryRequest(sql))

    return asyncio.run(ask())


def test_a_zip_is_an_endpoint_and_another_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("PK, but not a zip")

    assert parse_endpoint(report(tmp_path / "r.zip")) == Report(str(tmp_path / "r.zip"))
    with pytest.raises(BadRequest, match="not an endpoint"):
        parse_endpoint(str(tmp_path / "text"))


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ({"format": "other"}, "not made by"),
        ({"version": 2}, "version 2"),
        ({"targets": [{"folder": "ranks/../../etc", "info": INFO}]}, "list of targets is damaged"),
        ({"targets": [{"folder": "/etc", "info": INFO}]}, "list of targets is damaged"),
        ({"targets": [7]}, "list of targets is damaged"),
        ({"tables": [{"name": "../python.steps", "columns": []}]}, "list of tables is damaged"),
    ],
)
def test_a_head_that_leads_elsewhere_is_refused(tmp_path: Path, head: dict[str, Any], why: str) -> None:
    file = ReportFile(report(tmp_path / "r.zip", **head))

    with pytest.raises(BadRequest, match=why):
        _ = file.head, file.targets, file.tables


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = report(tmp_path / "r.zip", {"ranks/0-7/stacks.json": bytes(100 << 20)})

    assert Path(path).stat().st_size < 1 << 20
    with pytest.raises(BadRequest, match="larger than 64 MiB"):
        ReportFile(path).json("ranks/0-7/stacks.json")


def test_a_truncated_file_says_so(tmp_path: Path) -> None:
    path = Path(report(tmp_path / "r.zip"))
    path.write_bytes(path.read_bytes()[:-40])

    with pytest.raises(BadRequest, match="cannot be read as a report"):
        _ = ReportFile(str(path)).head


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    path = report(tmp_path / "r.zip", {"ranks/0-7/stacks.json": b"[" * 200_000})

    with pytest.raises(BadRequest, match="cannot be read"):
        ReportFile(path).json("ranks/0-7/stacks.json")


def test_rows_that_are_not_parquet_are_an_error_of_that_table_only(tmp_path: Path) -> None:
    wrong = b"PAR1 and then nothing of the kind PAR1"
    path = report(tmp_path / "r.zip", {"ranks/0-7/tables/python.steps.parquet": wrong})

    with pytest.raises(ProbeError, match=r"python\.steps cannot be read"):
        query(path, "SELECT * FROM python.steps")
    assert query(path, "SELECT 1").rows == ([1],)


@pytest.mark.parametrize("kind", ["BIGINT); DROP TABLE x; --", "no such type"])
def test_a_column_type_is_checked_before_it_is_in_sql(tmp_path: Path, kind: str) -> None:
    path = report(tmp_path / "r.zip", tables=[{"name": "python.steps", "columns": [{**COLUMN, "type": kind}]}])

    with pytest.raises(ProbeError, match="cannot be"):
        query(path, "SELECT * FROM python.steps")


def test_sql_on_a_report_reads_no_other_file(tmp_path: Path) -> None:
    path = report(tmp_path / "r.zip")

    with pytest.raises(ProbeError):
        query(path, "SELECT * FROM read_text('/etc/passwd')")
