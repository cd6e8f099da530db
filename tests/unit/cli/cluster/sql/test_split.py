"""What hosts are asked, and what merges their parts: groups of aggregates, first rows, and what is not split."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from probe_agent.sql.merged import MergeExecutor
from probe_cli.cluster.sql.split import Splitter, Unsplittable

from .hosts import merging, split_text

TABLES = {
    "test.steps": {"rank": "BIGINT", "step": "BIGINT", "x": "DOUBLE", "name": "VARCHAR", "ts": "TIMESTAMP"},
    "test.events": {"rank": "BIGINT", "kind": "VARCHAR"},
}


@pytest.fixture
def executor() -> Iterator[MergeExecutor]:
    executor = merging(TABLES)
    yield executor
    executor.close()


def plain(sql: str) -> str:
    return sql.replace('"', "").replace("(", "").replace(")", "")


@pytest.mark.parametrize(
    ("sql", "host", "merged"),
    [
        (
            "SELECT max(x) FROM test.steps",
            "SELECT max(x) AS a0 FROM test.steps",
            'SELECT max(a0) AS "max(x)" FROM _probe.parts',
        ),
        (
            "SELECT rank, avg(x) AS mean FROM test.steps WHERE step > 2 GROUP BY 1 HAVING mean > 1 ORDER BY 2 LIMIT 3",
            "SELECT rank AS g0, sum(x) AS a0, count(x) AS a1 FROM test.steps WHERE step > 2 GROUP BY rank",
            "SELECT g0 AS rank, CAST(sum(a0) AS DOUBLE) / nullif(sum(a1), 0) AS mean FROM _probe.parts GROUP BY g0"
            " HAVING CAST(sum(a0) AS DOUBLE) / nullif(sum(a1), 0) > 1"
            " ORDER BY 2 LIMIT 3",
        ),
        (
            "SELECT step % 3, min(x) FROM test.steps s GROUP BY 1",
            "SELECT step % 3 AS g0, min(x) AS a0 FROM test.steps AS s GROUP BY step % 3",
            'SELECT g0 AS "(step % 3)", min(a0) AS "min(x)" FROM _probe.parts GROUP BY g0',
        ),
        (
            "SELECT steps.rank, count(DISTINCT name) FILTER (WHERE x > 0) FROM test.steps GROUP BY ALL",
            "SELECT rank AS g0, name AS g1, x > 0 AS g2 FROM test.steps GROUP BY rank, name, x > 0",
            'SELECT g0 AS rank, count(DISTINCT g1) FILTER (WHERE g2) AS "count(DISTINCT name) FILTER (WHERE (x > 0))"'
            " FROM _probe.parts GROUP BY g0",
        ),
    ],
)
def test_groups_are_computed_on_hosts_and_merged_by_group(
    executor: MergeExecutor, sql: str, host: str, merged: str
) -> None:
    found = split_text(executor, TABLES, sql)

    assert tuple(map(plain, found)) == (plain(host), plain(merged))


@pytest.mark.parametrize(
    ("sql", "host"),
    [
        (
            "SELECT x FROM test.steps ORDER BY step LIMIT 3",
            "SELECT x AS c0, step AS c1 FROM test.steps ORDER BY step LIMIT 3",
        ),
        ("SELECT x FROM test.steps LIMIT 3 OFFSET 4", "SELECT x AS c0 FROM test.steps LIMIT 7"),
        ("SELECT x * 2 AS y FROM test.steps ORDER BY y", "SELECT x * 2 AS c0 FROM test.steps ORDER BY x * 2 LIMIT 11"),
        (
            "SELECT x, step FROM test.steps ORDER BY 2 LIMIT 99",
            "SELECT x AS c0, step AS c1 FROM test.steps ORDER BY step LIMIT 11",
        ),
        (
            "SELECT DISTINCT name FROM test.steps WHERE x > 1",
            "SELECT DISTINCT name AS c0 FROM test.steps WHERE x > 1 LIMIT 11",
        ),
        (
            "SELECT * EXCLUDE (x, ts) FROM test.steps",
            "SELECT rank AS c0, step AS c1, name AS c2 FROM test.steps LIMIT 11",
        ),
    ],
)
def test_hosts_send_the_first_rows_that_can_matter(executor: MergeExecutor, sql: str, host: str) -> None:
    found, merged = split_text(executor, TABLES, sql, max_rows=10)

    assert plain(found) == plain(host)
    assert "WHERE" not in merged
    assert ("ORDER BY" in merged, "DISTINCT" in merged) == ("ORDER BY" in sql, "DISTINCT" in sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT median(x) FROM test.steps",
        "SELECT string_agg(name, ',' ORDER BY name) FROM test.steps",
        "SELECT stddev(DISTINCT x) FROM test.steps",
        "SELECT rank, max(x) FROM test.steps GROUP BY ROLLUP (rank)",
        "SELECT x FROM test.steps WHERE random() < 0.5 LIMIT 3",
        "SELECT x FROM test.steps LIMIT 1 + 1",
        "SELECT x FROM test.steps LIMIT 10%",
        "SELECT x FROM test.steps TABLESAMPLE 10% LIMIT 3",
        "SELECT DISTINCT ON (rank) rank, x FROM test.steps",
        "SELECT DISTINCT name FROM test.steps ORDER BY step",
        "SELECT row_number() OVER () FROM test.steps LIMIT 3",
        "SELECT x FROM test.steps QUALIFY row_number() OVER () < 3",
        "SELECT count(*) FROM test.steps, test.events",
        "SELECT count(*) FROM test.steps WHERE rank IN (SELECT rank FROM test.events)",
        "SELECT e.rank FROM test.events e WHERE e.rank = steps.rank LIMIT 1",
        "SELECT x AS step, step AS s FROM test.steps ORDER BY step LIMIT 3",
        "SELECT max(x) FROM (SELECT * FROM test.steps)",
        "WITH t AS (SELECT 1) SELECT max(x) FROM test.steps",
        "SELECT max(x) FROM test.steps UNION SELECT 1",
        "SELECT max(x) FROM other.steps",
    ],
)
def test_what_may_differ_in_parts_is_not_split(executor: MergeExecutor, sql: str) -> None:
    with pytest.raises(Unsplittable):
        split_text(executor, TABLES, sql, max_rows=10)


def test_rows_that_nothing_cuts_are_left_to_be_fetched(executor: MergeExecutor) -> None:
    with pytest.raises(Unsplittable, match="all its rows are needed"):
        split_text(executor, TABLES, "SELECT x FROM test.steps WHERE step > 2 ORDER BY x")


def test_a_part_says_which_columns_it_reads_and_of_which_types_it_sends(executor: MergeExecutor) -> None:
    tree = executor.parsed("SELECT name, avg(x) FROM test.steps WHERE step > 2 GROUP BY name")

    part, _ = Splitter(executor, TABLES).split(tree, "_probe.parts")  # type: ignore[arg-type]

    assert (part.table, part.into, part.uses) == ("test.steps", "_probe.parts", {"name", "x", "step"})
    assert part.columns == [("g0", "VARCHAR"), ("a0", "DOUBLE"), ("a1", "BIGINT")]
