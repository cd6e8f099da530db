"""Aggregates in parts, against two oracles: one database with all rows, and DuckDB's own aggregate states."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import suppress

import duckdb
import pytest

from probe_cli.cluster.sql.aggregates import RECIPES

from .hosts import Answers, answer_in_parts

COLUMNS = {
    "g": "VARCHAR", "i": "BIGINT", "small": "SMALLINT", "big": "UBIGINT", "d": "DECIMAL(10,2)", "x": "DOUBLE",
    "far": "DOUBLE", "f": "FLOAT", "n": "VARCHAR", "b": "BOOLEAN", "ts": "TIMESTAMP", "day": "DATE",
}  # fmt: skip
TABLES = {"test.rows": COLUMNS}
Parted = tuple[list[duckdb.DuckDBPyConnection], duckdb.DuckDBPyConnection]
NUMBERS = ("i", "small", "big", "d", "x", "far", "f")
ANY = (*NUMBERS, "n", "b", "ts", "day")
CALLS = (
    *(f"{name}({column})" for name in ("sum", "avg", "mean") for column in NUMBERS),
    *(f"{name}({column})" for name in ("min", "max", "count") for column in ANY),
    *(f"{name}({column})" for name in ("stddev", "stddev_pop", "var_pop", "var_samp") for column in ("i", "x", "far")),
    "variance(far)", "stddev_samp(x)", "count(*)", "count_if(b)", "countif(x > 0)", "bool_and(b)", "bool_or(b)",
    "bit_and(i)", "bit_or(i)", "bit_xor(i)", "any_value(g)", "arg_max(n, far)", "max_by(i, far)", "arg_min(ts, far)",
    "min_by(n, far)", "sum(x) FILTER (WHERE b)", "stddev(far) FILTER (WHERE i > 4)", "count(*) FILTER (WHERE n = 'a')",
)  # fmt: skip
OVER_VALUES = (
    "count(DISTINCT i)", "count(DISTINCT n)", "sum(DISTINCT small)", "avg(DISTINCT i)", "min(DISTINCT x)",
    "count(DISTINCT n) FILTER (WHERE b)", "approx_count_distinct(i)",
)  # fmt: skip


def rows(draw: random.Random, number: int) -> list[tuple[object, ...]]:
    def maybe(value: object) -> object:
        return None if draw.random() < 0.2 else value

    return [
        (
            draw.choice("pqr"),
            maybe(draw.randrange(-9, 9)),
            maybe(draw.randrange(99)),
            maybe(2**63 + draw.randrange(9)),
            maybe(draw.randrange(999) / 100),
            maybe(draw.uniform(-5, 5)),
            1e6 + draw.random(),
            maybe(draw.randrange(8) / 4),
            maybe(draw.choice(("a", "b", "it's"))),
            maybe(draw.random() < 0.5),
            maybe(f"2026-01-01 00:00:{draw.randrange(60):02}"),
            maybe(f"2026-01-{draw.randrange(1, 28):02}"),
        )
        for _ in range(number)
    ]


def database(held: Sequence[tuple[object, ...]]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    described = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    connection.execute(f"SET TimeZone='UTC'; CREATE SCHEMA test; CREATE TABLE test.rows (host BIGINT, {described})")
    if held:
        connection.executemany(f"INSERT INTO test.rows VALUES ({', '.join('?' * (len(COLUMNS) + 1))})", held)
    return connection


@pytest.fixture(scope="module", params=[(12, 0, 31), (1, 1, 1, 1), (0, 0), (40,)], ids=str)
def parted(request: pytest.FixtureRequest) -> Parted:
    """Hosts with so many rows each, and one database with all of them."""
    draw = random.Random(7)
    held = [[(host, *row) for row in rows(draw, number)] for host, number in enumerate(request.param)]
    hosts = [database(each) for each in held]
    return hosts, database([row for each in held for row in each])


def alike(ours: Answers, theirs: Answers) -> bool:
    def same(a: object, b: object) -> bool:
        if isinstance(a, float) and isinstance(b, float):
            return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
        return type(a) is type(b) and a == b

    return len(ours) == len(theirs) and all(
        same(a, b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_every_recipe_is_checked() -> None:
    called = {call.partition("(")[0] for call in CALLS} | {"count_star"}

    assert called >= set(RECIPES)


@pytest.mark.parametrize("by", ["g", ""])
def test_parts_merge_to_what_one_database_and_its_own_states_answer(parted: Parted, by: str) -> None:
    hosts, whole = parted
    key, end = ("g, ", " GROUP BY g ORDER BY g") if by else ("", "")

    for at in range(0, len(CALLS), 8):
        calls = CALLS[at : at + 8]
        sql = f"SELECT {key}{', '.join(calls)} FROM test.rows{end}"
        exported = ", ".join(f"{call} EXPORT_STATE AS s{at}" for at, call in enumerate(calls))
        final = ", ".join(f"finalize(combine_aggr(s{at}))" for at in range(len(calls)))
        states = f"SELECT {key}{final} FROM (SELECT host, {key}{exported} FROM test.rows GROUP BY ALL){end}"
        ours = answer_in_parts(hosts, TABLES, sql)

        assert alike(ours, whole.execute(sql).fetchall()), sql
        if any(len(host.execute("FROM test.rows").fetchall()) for host in hosts):
            assert alike(ours, whole.execute(states).fetchall()), states


@pytest.mark.parametrize("by", ["g", ""])
def test_aggregates_over_different_values_are_those_of_one_database(parted: Parted, by: str) -> None:
    hosts, whole = parted
    key, end = ("g, ", " GROUP BY g ORDER BY g") if by else ("", "")
    sql = f"SELECT {key}{', '.join(OVER_VALUES)}, sum(i), stddev(far) FROM test.rows{end}"

    assert alike(answer_in_parts(hosts, TABLES, sql), whole.execute(sql).fetchall())


def test_exported_states_of_distinct_aggregates_are_no_oracle() -> None:
    both = duckdb.connect()
    exported = "SELECT count(DISTINCT v) EXPORT_STATE AS s FROM (VALUES (1, 7), (2, 7)) AS t(host, v) GROUP BY host"
    counted = [(2,)]  # the state is a plain count: the value 7 counts once a host

    with suppress(duckdb.BinderException):  # DuckDB 2.0.1 refuses it for that reason
        counted = both.execute(f"SELECT finalize(combine_aggr(s)) FROM ({exported})").fetchall()

    assert counted == [(2,)]


def test_variances_of_large_numbers_lose_nothing_by_merging() -> None:
    values = [1e9 + at / 7 for at in range(60)]
    held = [(at % 3, "p", *[None] * 5, value, *[None] * 5) for at, value in enumerate(values)]
    hosts = [database([row for row in held if row[0] == host]) for host in range(3)]
    mean = math.fsum(values) / len(values)
    exact = math.fsum((value - mean) ** 2 for value in values) / len(values)

    ((found,),) = answer_in_parts(hosts, TABLES, "SELECT var_pop(far) FROM test.rows")

    assert isinstance(found, float)
    assert math.isclose(found, exact, rel_tol=1e-6)
