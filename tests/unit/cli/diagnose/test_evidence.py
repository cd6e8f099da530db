"""Statements of all rules in one question, and what remains of them when it fails."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any, cast

from probe_agent.errors import LimitReached, NoAnswer, QueryFailed
from probe_agent.wire import ColumnInfo, QueryRequest, QueryResult
from probe_cli.client import Client
from probe_cli.diagnose.evidence import Evidence, question_of
from probe_cli.diagnose.rule import Rule


class Host:
    """A host server that fails each statement with one of `broken` in it."""

    def __init__(self, failure: type[Exception], *broken: str) -> None:
        self.failure, self.broken = failure, broken
        self.num_asked = 0
        self.sql = ""

    async def send(self, kind: type[QueryResult], method: str, path: str, request: QueryRequest) -> QueryResult:
        self.num_asked += 1
        self.sql = request.sql
        if any(word in request.sql for word in self.broken):
            raise self.failure("broken", "mend it")
        names = re.findall(r'AS "([^"]+)"', request.sql)
        columns = tuple(ColumnInfo(name, "", "", "") for name in names)
        return QueryResult(columns, [[[{"of": name}] for name in names]], False, (), 0.0)


def rules(*names: str, is_live: bool = False) -> list[Rule]:
    return [Rule(name, "speed", "?", f"FROM {name}", lambda asked, limits: (), is_live=is_live) for name in names]


def asked(host: Any, *every: Rule) -> Evidence:
    return asyncio.run(question_of(every, 1.0)(cast(Client, host)))


def test_rings_and_recorder_are_one_question_each() -> None:
    host = Host(QueryFailed)

    told = asked(host, *rules("a", "b"), *rules("c", "d", is_live=True))

    assert host.num_asked == 2
    assert told.rows == {name: [{"of": name}] for name in "abcd"}


def test_each_table_is_read_once_for_all_statements() -> None:
    host = Host(QueryFailed)
    own = (
        "FROM python.steps",
        "SELECT 'python.steps' AS name",
        "FROM (FROM python.steps LIMIT 5) JOIN python.collectives USING (step)",
    )

    told = asked(host, *(replace(rule, sql=sql) for rule, sql in zip(rules("a", "b", "c"), own, strict=True)))

    assert re.findall(r"FROM (python\.\w+)", host.sql) == ["python.collectives", "python.steps"]
    assert host.sql.count('FROM "python.steps"') == 2
    assert "'python.steps' AS name" in host.sql, "a text that is called like a table"
    assert set(told.rows) == {"a", "b", "c"}


def test_a_statement_that_fails_costs_its_own_rule() -> None:
    told = asked(Host(QueryFailed, "FROM b"), *rules("a", "b", "c"))

    assert set(told.rows) == {"a", "c"}
    assert told.failed == {"b": "broken"}


def test_a_recorder_that_does_not_answer_is_not_asked_rule_by_rule() -> None:
    host = Host(NoAnswer, "FROM live", "process.env")

    told = asked(host, *rules("a"), *rules(*(f"live{at}" for at in range(20)), is_live=True))

    assert host.num_asked == 3
    assert set(told.rows) == {"a"}
    assert len(told.failed) == 20


def test_where_time_was_short_the_reason_says_how_to_give_more() -> None:
    class Slow(Host):
        async def send(self, kind: type[QueryResult], method: str, path: str, request: QueryRequest) -> QueryResult:
            await asyncio.sleep(2 * request.timeout_s)
            return await super().send(kind, method, path, request)

    told = asyncio.run(question_of(rules("a", is_live=True), 0.02)(cast(Client, Slow(LimitReached, "a"))))

    assert told.failed == {"a": "broken; allow more: --timeout SECONDS"}


def test_numbers_that_json_has_no_form_for_are_numbers() -> None:
    class Overflown(Host):
        async def send(self, kind: type[QueryResult], method: str, path: str, request: QueryRequest) -> QueryResult:
            answer = await super().send(kind, method, path, request)
            return replace(answer, rows=[[[{"norm": "Infinity", "of": [{"loss": "NaN"}], "text": "NaN of it"}]]])

    (row,) = asked(Overflown(QueryFailed), *rules("a")).rows["a"]

    assert row["norm"] == float("inf")
    assert row["of"][0]["loss"] != row["of"][0]["loss"]
    assert row["text"] == "NaN of it"
