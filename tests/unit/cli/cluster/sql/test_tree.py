"""Syntax trees: what is equal, what is found and what is replaced in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from probe_agent.sql.merged import MergeExecutor
from probe_cli.cluster.sql.tree import arguments, column, expressions, integer, key, replaced, tables_named

from .hosts import merging


@pytest.fixture(scope="module")
def executor() -> Iterator[MergeExecutor]:
    executor = merging({})
    yield executor
    executor.close()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a + 1", "A  +  1", True),
        ("a + 1 AS x", "a + 1 AS y", True),
        ("a + 1", "1 + a", False),
        ("sum(a)", "sum(DISTINCT a)", False),
        ("sum(a)", "sum(a) FILTER (WHERE b)", False),
        ("'a'", "'A'", False),
        ("1", "1.0", False),
        ("CAST(a AS INT)", "CAST(a AS BIGINT)", False),
    ],
)
def test_equal_expressions_share_a_key(executor: MergeExecutor, one: str, other: str, same: bool) -> None:
    assert (key(executor.expression(one)) == key(executor.expression(other))) is same


def test_replacing_leaves_the_original_as_it_is(executor: MergeExecutor) -> None:
    tree = executor.parsed("SELECT a, b + a FROM main.t")
    before = executor.text_of(tree)

    changed = replaced(tree, lambda node: column("c") if node.get("column_names") == ["a"] else None)

    assert executor.text_of(tree) == before
    assert executor.text_of(changed) == "SELECT c, (b + c) FROM main.t"


def test_literals_and_arguments_are_read(executor: MergeExecutor) -> None:
    whole, broken, text = (integer(executor.expression(each)) for each in ("12", "1.5", "'12'"))
    called = executor.expression("arg_max(a, b + 1)")

    assert (whole, broken, text) == (12, None, None)
    assert [executor.text_of({**executor.parsed("SELECT 1"), "select_list": [each]}) for each in arguments(called)] == [
        "SELECT a",
        "SELECT (b + 1)",
    ]
    assert [node["class"] for node in expressions(called)][-1] == "FUNCTION"


def test_tables_are_those_with_a_schema_wherever_they_stand(executor: MergeExecutor) -> None:
    sql = (
        "WITH t AS (SELECT * FROM Test.Steps) SELECT (SELECT max(x) FROM other.b) FROM t"
        " JOIN test.steps USING (x) WHERE EXISTS (FROM test.c)"
    )

    assert sorted(tables_named(executor.parsed(sql))) == ["other.b", "test.c", "test.steps"]
