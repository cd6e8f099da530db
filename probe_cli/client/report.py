"""An httpx transport that answers out of a report, as a host server would out of its targets.

Questions about stacks, tables, targets and SQL are answered; all others need the living job. SQL runs in a query
worker of the command line, with the limits of a host: the rows in a report are as untrusted as a stranger's.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import closing
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from probe_agent.errors import BadRequest, NoAnswer, ProbeError
from probe_agent.sql.merging import MergedDatabase, RefusedStatement
from probe_agent.wire import QueryRequest, decode
from probe_cli.report_file import MAX_TABLE_BYTES, ReportFile, ReportTarget, stacks_file, table_file

__all__ = ["ReportTransport"]

ARROW = "application/vnd.apache.arrow.stream"
#: All tables of a statement, unpacked.
MAX_STATEMENT_BYTES = 2 << 30
_JSON = "application/json"


class ReportTransport(httpx.AsyncBaseTransport):
    """Answers for the targets in one report."""

    def __init__(self, path: str) -> None:
        self._report = ReportFile(path)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await asyncio.to_thread(self._answer, request)
        except ProbeError as error:
            told = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
            return httpx.Response(400, json={"error": told})

    def _answer(self, request: httpx.Request) -> httpx.Response:
        report, params = self._report, request.url.params
        if request.url.path == "/v1/targets":
            return _json({"targets": [target.info for target in report.targets], "candidates": []})
        targets = _chosen(report, params)
        if request.url.path == "/v1/tables":
            return _json({"tables": list(report.tables.values()), "notes": report.notes})
        if request.url.path == "/v1/backtrace":
            return self._stacks(targets)
        if request.url.path == "/v1/query":
            return self._rows(targets, decode(QueryRequest, json.loads(request.content)), request.headers["accept"])
        raise BadRequest(
            f"{report.path} is a report, which cannot be asked for that: it needs the living job",
            "use query, tables, ranks, backtrace, or " + (" or ".join(report.findings) or "README.txt in it"),
        )

    def _stacks(self, targets: list[ReportTarget]) -> httpx.Response:
        if len(targets) > 1:
            raise BadRequest(
                f"{self._report.path} has the stacks of {len(targets)} targets",
                "name ranks, as in --rank 0,4-7, or all of them: backtrace --all-ranks, or --all in front",
            )
        name = stacks_file(targets[0].folder)
        if not self._report.has(name):
            raise NoAnswer(
                f"{self._report.path} has no stacks of pid {targets[0].pid}",
                "see in README.txt in it what was left out",
            )
        return httpx.Response(200, content=self._report.read(name), headers={"Content-Type": _JSON})

    def _rows(self, targets: list[ReportTarget], request: QueryRequest, accept: str) -> httpx.Response:
        tables = self._report.tables
        said = request.sql.lower()
        # A name that only stands in a text is one table more to load.
        meant = {name for name in tables if name.rpartition(".")[2].lower() in said}
        notes = tuple(note for note in self._report.notes if any(name in note for name in meant))
        with TemporaryDirectory(prefix="probe-") as folder, closing(MergedDatabase(request)) as database:
            left = MAX_STATEMENT_BYTES
            for name, table in tables.items():
                columns = _columns(self._report, name, table)
                try:
                    database.create(name, columns)
                    for target in targets if name in meant else ():
                        left -= self._load(database, name, columns, target, folder, left)
                except RefusedStatement as refusal:
                    raise BadRequest(
                        f"{self._report.path}: {name} cannot be read: {refusal}", "query another table"
                    ) from None
            sql = database.only_statement(request.sql)
            database.check(sql, {name: list(_columns(self._report, name, table)) for name, table in tables.items()})
            answer = database.arrow(sql, notes) if accept == ARROW else database.json(sql, notes)
        headers = {"Content-Type": accept, "X-Probe-Notes": json.dumps(list(answer.notes))}
        return httpx.Response(200, content=b"".join(answer.pieces), headers=headers)

    def _load(
        self,
        database: MergedDatabase,
        name: str,
        columns: Mapping[str, str],
        target: ReportTarget,
        folder: str,
        left: int,
    ) -> int:
        """Load what one target has in a table; returns its bytes."""
        member = table_file(target.folder, name)
        if not self._report.has(member):
            return 0
        path, size = os.path.join(folder, "table.parquet"), 0
        with open(path, "wb") as file:
            for piece in self._report.pieces(member, min(MAX_TABLE_BYTES, left)):
                size += file.write(piece)
        database.load_parquet(name, columns, path)
        return size


def _chosen(report: ReportFile, params: httpx.QueryParams) -> list[ReportTarget]:
    """The targets that a question means: by their PID, or all."""
    pid = params.get("pid")
    found = [target for target in report.targets if pid is None or str(target.pid) == pid]
    if not found:
        raise NoAnswer(f"{report.path} has no such target", "list those that it has: probe REPORT ranks")
    return found


def _columns(report: ReportFile, name: str, table: Mapping[str, Any]) -> dict[str, str]:
    try:
        return {str(column["name"]): str(column["type"]) for column in table["columns"]}
    except (KeyError, TypeError):
        raise BadRequest(f"{report.path}: the columns of {name} are damaged", "query another table") from None


def _json(content: object) -> httpx.Response:
    return httpx.Response(200, json=content)
