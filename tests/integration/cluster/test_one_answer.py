"""Many hosts answer like one database with the rows of all."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Sequence

import pytest

from probe_agent.errors import QueryFailed
from probe_agent.sql.engine.request import Answer
from probe_agent.wire import QueryRequest
from probe_cli.cluster.fanout import open_conversation
from probe_cli.cluster.sql.execute import answer
from probe_cli.endpoint import parse_endpoint

from .conftest import NUM_HOSTS, Hosts
from .random_sql import statement

#: Statements a test: 36 in all, and 1,050 where there is time.
NUM_STATEMENTS, NUM_LONG = 12, 150


async def asked(addresses: Sequence[str], statements: Sequence[str], **limits: float) -> list[Answer]:
    """Return the answers of the hosts to statements, one after the other."""
    outcomes = []
    endpoints = [parse_endpoint(address) for address in addresses]
    async with open_conversation(endpoints, timeout_s=60, total_s=900, inject=False, remark=print) as conversation:
        for sql in statements:
            request = QueryRequest(sql, int(limits.get("max_rows", 100_000)), timeout_s=60)
            max_bytes = int(limits.get("max_bytes", 2**28))
            try:
                outcome = await answer(conversation, request, max_bytes=max_bytes, host_timeout_s=60, arrow=False)
            except QueryFailed as failure:
                raise AssertionError(f"{sql}: {failure.message}") from failure
            assert outcome is not None, [member.error for member in conversation.members]
            assert len(conversation.present) == len(addresses), (sql, [m.error for m in conversation.members])
            outcomes.append(outcome)
    return outcomes


def decoded(outcome: Answer) -> tuple[list[tuple[str, str]], list[list[object]]]:
    result = json.loads(outcome.body)
    columns = [(column["name"], column["type"]) for column in result["columns"]]
    floats = [at for at, (_, kind) in enumerate(columns) if kind in ("DOUBLE", "FLOAT")]
    for row in result["rows"]:
        for at in floats:
            row[at] = None if row[at] is None else float(row[at])
    return columns, result["rows"]


def plain(value: object) -> object:
    """Convert a value to the form of the answer's JSON."""
    if hasattr(value, "isoformat"):
        return value.isoformat("T", "microseconds")
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


def order(row: Sequence[object]) -> list[tuple[bool, str]]:
    """Sort so that rows that differ only by rounding take the same place."""
    return [(value is None, f"{value:.10g}" if isinstance(value, float) else str(value)) for value in row]


def alike(ours: object, theirs: object) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return (math.isnan(ours) and math.isnan(theirs)) or math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12)
    return ours == theirs


@pytest.mark.parametrize("num_servers", [1, 3, NUM_HOSTS])  # each other number is in the test below
def test_random_statements_are_answered_as_one_database_would(hosts: Hosts, num_servers: int) -> None:
    check(hosts, num_servers, NUM_STATEMENTS, random.Random(1000 + num_servers))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_servers", range(1, NUM_HOSTS + 1))
def test_a_thousand_random_statements_are_answered_as_one_database_would(hosts: Hosts, num_servers: int) -> None:
    check(hosts, num_servers, NUM_LONG, random.Random(2000 + num_servers))


def check(hosts: Hosts, num_servers: int, num_statements: int, draw: random.Random) -> None:
    servers = sorted(draw.sample(range(NUM_HOSTS), num_servers))
    made = [statement(draw) for _ in range(num_statements)]
    whole = hosts.of(servers)

    outcomes = asyncio.run(asked([hosts.addresses[at] for at in servers], [sql for sql, _ in made]))

    for (sql, is_ordered), outcome in zip(made, outcomes, strict=True):
        columns, ours = decoded(outcome)
        result = whole.execute(sql)
        described = [(str(column[0]), str(column[1])) for column in result.description or ()]
        theirs = [[plain(value) for value in row] for row in result.fetchall()]
        if not is_ordered:
            ours, theirs = sorted(ours, key=order), sorted(theirs, key=order)
        assert columns == described, sql
        assert len(ours) == len(theirs), sql
        for mine, other in zip(ours, theirs, strict=True):
            assert all(map(alike, mine, other)), (sql, mine, other)
