"""Random statements over test.steps and test.events, of every shape that is executed in a different way.

Some of them compose expressions at random.

Statements whose answer is not determined (ties in a LIMIT, an order that is not total) are not generated.
"""

from __future__ import annotations

import random

__all__ = ["statement"]

KEYS = (
    "rank", "host", "step", "name", "ok", "step % 3", "rank + step", "name IS NULL", "x > 0",
    "date_trunc('minute', ts)",
    "coalesce(name, 'none')", "CASE WHEN ok THEN 'yes' ELSE name END", "floor(x)",
)  # fmt: skip
FILTERS = (
    "step > 5", "rank IN (1, 3, 4, 7)", "x IS NOT NULL", "x > 0.5", "NOT ok", "name = 'it''s'", "name LIKE 'a%'",
    "step BETWEEN 3 AND 12", "y < 0.30000000000000004", "isnan(y)", "host = 'host1' OR step = 4", "name IS NULL",
    "ts > TIMESTAMP '1970-01-01 00:05:00'", "ts < now() - INTERVAL 1 DAY", "false", "step + rank > 9",
    "step > (SELECT max(step) - 4 FROM test.steps)", "x >= (SELECT avg(x) FROM test.steps WHERE ok)",
    "step IN (SELECT step FROM test.events)", "x = (SELECT max(x) FROM test.steps)",
    "rank IN (SELECT DISTINCT rank FROM test.events WHERE kind = 'save')",
    "EXISTS (SELECT 1 FROM test.events e WHERE e.step = steps.step AND e.cost > 4)",
)  # fmt: skip
AGGREGATES = (
    "count(*)", "count(x)", "count(name)", "sum(step)", "sum(x)", "avg(x)", "avg(step)", "mean(far)", "min(x)",
    "max(x)", "min(name)", "max(ts)", "stddev(x)", "stddev(far)", "stddev_pop(far)", "var_samp(step)", "var_pop(x)",
    "variance(far)", "count(*) FILTER (WHERE ok)", "sum(x) FILTER (WHERE x > 0)",
    "avg(far) FILTER (WHERE name = 'a')", "max(y)", "stddev(x) FILTER (WHERE ok)", "sum(x * 2 + step)",
    "max(x) - min(x)", "round(avg(x), 3)", "count_if(ok)", "bool_or(ok)", "bool_and(x > -9)", "arg_max(step, far)",
    "min_by(far, ts)", "count(DISTINCT step)", "count(DISTINCT name)", "sum(DISTINCT step)",
    "approx_count_distinct(step)", "count(DISTINCT step) FILTER (WHERE ok)", "sum(ok::INT)", "median(x)",
    "quantile_cont(far, 0.9)", "quantile_disc(step, 0.3)", "string_agg(name, ',' ORDER BY name)", "avg(x) / count(*)",
    "sum(x) / nullif(count(y), 0)", "sum(y)", "skewness(x)", "100.0 * count(*) / sum(count(*)) OVER ()",
)  # fmt: skip


def statement(draw: random.Random) -> tuple[str, bool]:
    """Return SQL, and whether its rows have a defined order."""
    one_table = (_groups, _groups, _groups, _whole, _rows, _top, _distinct, _composed, _composed)
    return draw.choice((*one_table, *_OTHERS))(draw)


def number(draw: random.Random, depth: int = 2) -> str:
    """Return an expression of one row that is a number or NULL."""
    if not depth or draw.random() < 0.3:
        return draw.choice(("step", "rank", "x", "far", "steps.step", "test.steps.rank", "STEP", "length(name)", "3"))
    a, b = number(draw, depth - 1), number(draw, depth - 1)
    return draw.choice(
        (
            f"({a} + {b})", f"({a} - {b})", f"({a} * 2)", f"abs({a})", f"coalesce({a}, {b})", f"greatest({a}, {b})",
            f"nullif({a}, {b})", f"CASE WHEN {condition(draw, depth - 1)} THEN {a} ELSE {b} END", f"(-{a})",
            f"CAST({a} AS DOUBLE)", f"if(ok, {a}, {b})",
        )
    )  # fmt: skip


def condition(draw: random.Random, depth: int = 2) -> str:
    """Return an expression of one row that is true, false or NULL."""
    if not depth or draw.random() < 0.3:
        return draw.choice(("ok", "NOT ok", "name IS NULL", "x > 0", "step IN (1, 2, 5, 8)", "name IN ('a', 'it''s')"))
    a, b = number(draw, depth - 1), number(draw, depth - 1)
    c, d = condition(draw, depth - 1), condition(draw, depth - 1)
    return draw.choice(
        (
            f"({a} < {b})", f"({a} >= {b})", f"({a} BETWEEN {b} AND 9)", f"({c} AND {d})", f"({c} OR {d})",
            f"(NOT {c})", f"({a} IS NOT NULL)", f"({a} IS DISTINCT FROM {b})",
            f"({a} > (SELECT avg({b}) FROM test.steps WHERE {c}))",
        )
    )  # fmt: skip


def aggregate(draw: random.Random) -> str:
    """Return an aggregate over numbers, whose answer no order of rows changes."""
    function = draw.choice(
        ("sum", "avg", "min", "max", "count", "stddev", "var_pop", "count(DISTINCT", "max(DISTINCT", "median")
    )
    over = number(draw)
    called = f"{function} {over})" if "(" in function else f"{function}({over})"
    return called + (f" FILTER (WHERE {condition(draw, 1)})" if draw.random() < 0.3 else "")


def _composed(draw: random.Random) -> tuple[str, bool]:
    keys = [draw.choice((number(draw), condition(draw, 1), "name", "rank")) for _ in range(draw.randrange(3))]
    keys = [key for key in dict.fromkeys(keys) if key != "3" and "SELECT" not in key]
    aggregates = [aggregate(draw) for _ in range(draw.randrange(1, 4))]
    named = [f"{each} AS v{at}" for at, each in enumerate(aggregates)]
    items = ", ".join([*(f"{key} AS k{at}" for at, key in enumerate(keys)), *named, f"({aggregates[0]}) * 2 AS twice"])
    by = f" GROUP BY {draw.choice((', '.join(keys), ', '.join(f'k{at}' for at in range(len(keys))), 'ALL'))}"
    having = draw.choice(("", "", f" HAVING {aggregate(draw)} > 1", " HAVING v0 IS NOT NULL", " HAVING count(*) > 2"))
    inner = f"FROM test.steps WHERE {condition(draw)}{by if keys else ''}{having}"
    sql = f"SELECT {items} {inner}"
    if draw.random() < 0.25:
        return (
            f"SELECT count(*), max(v0), min(twice) FROM ({sql}) AS t WHERE v0 > (SELECT min(x) FROM test.steps)",
            False,
        )
    if draw.random() < 0.25:
        return f"WITH t AS ({sql}) SELECT a.v0, b.twice FROM t AS a, t AS b WHERE a.v0 < b.v0", False
    if keys and draw.random() < 0.4:
        return f"{sql} ORDER BY {', '.join(str(at + 1) for at in range(len(keys)))}", True
    return sql, False


def _where(draw: random.Random, chance: float = 0.6) -> str:
    conditions = draw.sample(FILTERS, draw.choice((1, 1, 2))) if draw.random() < chance else []
    return " WHERE " + " AND ".join(f"({each})" for each in conditions) if conditions else ""


def _groups(draw: random.Random) -> tuple[str, bool]:
    keys = draw.sample(KEYS, draw.choice((1, 1, 2)))
    aggregates = draw.sample(AGGREGATES, draw.choice((1, 2, 3)))
    items = [*keys, *(f"{each} AS a{at}" for at, each in enumerate(aggregates))]
    numbers = ", ".join(str(at + 1) for at in range(len(keys)))
    by = draw.choice((", ".join(keys), numbers, "ALL"))
    having = draw.choice(("", "", " HAVING count(*) > 3", " HAVING max(x) > 1 OR sum(step) > 20"))
    sql = f"SELECT {', '.join(items)} FROM test.steps{_where(draw)} GROUP BY {by}{having}"
    if draw.random() < 0.5:
        return f"{sql} ORDER BY {draw.choice((numbers, 'ALL'))}", True
    if draw.random() < 0.5:
        return f"{sql} ORDER BY {numbers} LIMIT {draw.randrange(1, 6)} OFFSET {draw.randrange(3)}", True
    return sql, False


def _whole(draw: random.Random) -> tuple[str, bool]:
    aggregates = draw.sample(AGGREGATES, draw.choice((1, 2, 4)))
    return f"SELECT {', '.join(aggregates)} FROM test.steps AS s{_where(draw).replace('steps.step', 's.step')}", False


def _rows(draw: random.Random) -> tuple[str, bool]:
    items = draw.choice(("*", "* EXCLUDE (y)", "steps.rank, x * 2 AS twice, upper(name)", "step, step + 1 AS next, ok"))
    return f"SELECT {items} FROM test.steps{_where(draw)}", False


def _top(draw: random.Random) -> tuple[str, bool]:
    order = draw.choice(("far DESC, ts", "x NULLS LAST, far, ts", "name DESC NULLS FIRST, far, ts", "-far, 1, ts"))
    items = draw.choice(("rank, far, x", "*", "host, pid, name AS title, far", "step % 4 AS part, far"))
    limit = f" LIMIT {draw.randrange(12)}" + draw.choice(("", " OFFSET 2"))
    return f"SELECT {items} FROM test.steps{_where(draw)} ORDER BY {order}{draw.choice((limit, ''))}", True


def _distinct(draw: random.Random) -> tuple[str, bool]:
    columns = ", ".join(draw.sample(("rank", "host", "step % 5 AS part", "name", "ok"), 2))
    limit = draw.choice(("", f" LIMIT {draw.randrange(1, 7)}"))
    return f"SELECT DISTINCT {columns} FROM test.steps{_where(draw)} ORDER BY 1, 2{limit}", True


def _join(draw: random.Random) -> tuple[str, bool]:
    kind = draw.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"))
    condition = draw.choice(("s.step = e.step", "s.step = e.step AND s.rank = e.rank"))
    both = "SEMI" not in kind and "ANTI" not in kind
    where = draw.choice(("", " WHERE s.ok", " WHERE s.x > 0 AND s.name IS NOT NULL"))
    where += draw.choice((" WHERE e.cost > 3", " WHERE e.kind IS NULL")) if both and not where else ""
    if both and draw.random() < 0.5:
        items = "e.kind, s.name, count(*) AS n, sum(e.cost) AS cost, avg(s.x) AS x"
        return f"SELECT {items} FROM test.steps s {kind} test.events e ON {condition}{where} GROUP BY ALL", False
    items = "s.step, s.rank, s.far, e.kind, e.cost" if both else "s.step, s.rank, s.far"
    return f"SELECT {items} FROM test.steps s {kind} test.events e ON {condition}{where}", False


def _window(draw: random.Random) -> tuple[str, bool]:
    over = draw.choice(("PARTITION BY rank ORDER BY far, ts", "PARTITION BY name ORDER BY ts, far", "ORDER BY far, ts"))
    function = draw.choice(("row_number()", "sum(step)", "lag(x)", "count(x)"))
    qualify = draw.choice(("", f" QUALIFY row_number() OVER ({over}) <= 2"))
    return f"SELECT rank, far, {function} OVER ({over}) AS w FROM test.steps{_where(draw)}{qualify}", False


def _nested(draw: random.Random) -> tuple[str, bool]:
    inner = f"SELECT rank, step, avg(x) AS mean, count(*) AS n FROM test.steps{_where(draw)} GROUP BY ALL"
    top = f"SELECT rank, step, far AS mean, 1 AS n FROM test.steps{_where(draw)} ORDER BY far, ts LIMIT 9"
    body = draw.choice((inner, top))
    return draw.choice(
        (
            f"SELECT max(mean), sum(n), count(*) FROM ({body}) AS t",
            f"WITH t AS ({body}) SELECT rank, max(mean) AS most FROM t GROUP BY rank",
            f"WITH t AS ({body}) SELECT t.*, e.kind FROM t JOIN test.events e USING (step)",
            f"SELECT step, n - (SELECT min(n) FROM ({body})) AS more FROM ({body}) AS t WHERE mean IS NOT NULL",
        )
    ), False


def _set(draw: random.Random) -> tuple[str, bool]:
    operation = draw.choice(("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL"))
    first = f"SELECT step, rank FROM test.steps{_where(draw)}"
    rows, groups = "step, rank FROM test.events WHERE cost > 2", "max(step), rank FROM test.steps GROUP BY rank"
    second = f"SELECT {draw.choice((rows, groups))}"
    return f"{first} {operation} {second}", False


def _odd(draw: random.Random) -> tuple[str, bool]:
    return draw.choice(
        (
            "SELECT 1 + 1 AS two",
            "SELECT count(*) FROM test.steps, test.events",
            "SELECT s.rank, (SELECT max(cost) FROM test.events e WHERE e.rank = s.rank) AS most FROM test.steps s",
            "SELECT rank, name, count(*) FROM test.steps GROUP BY ROLLUP (rank, name)",
            "SELECT a.step FROM test.steps a JOIN test.steps b ON a.far = b.far WHERE a.ok AND b.rank > 2",
            "FROM test.events",
            "SELECT max(step) AS step FROM test.steps HAVING max(step) > 2",
            "SELECT rank AS r, sum(step) AS total FROM test.steps GROUP BY r HAVING total > 50 ORDER BY total DESC, r",
            "SELECT rank, avg(x) - median(avg(x)) OVER () AS off FROM test.steps GROUP BY rank",
            "SELECT t.rank, t.s.rank FROM (SELECT rank, s FROM test.steps AS s) AS t",
            "SELECT COLUMNS('r.*') FROM test.steps",
            "SELECT * FROM (SELECT * FROM test.steps) WHERE rank = 3",
            "SELECT rank, list(step ORDER BY step, far) FROM test.steps WHERE step < 3 GROUP BY rank",
            "SELECT * FROM test.steps AS t(a, b, c) WHERE c < 4",
            "SELECT step FROM test.steps WHERE far = (SELECT min(far) FROM test.steps)",
            "SELECT count(*), max(now()) IS NOT NULL FROM test.steps WHERE ts < current_timestamp",
            "SELECT name COLLATE NOCASE AS n, count(*) FROM test.steps GROUP BY n",
            "SELECT rank, step FROM test.steps NATURAL JOIN test.events",
            "SELECT sum(n) FROM (SELECT count(*) AS n FROM test.steps UNION ALL SELECT count(*) FROM test.events)",
            "SELECT DISTINCT ON (rank) rank, far FROM test.steps ORDER BY rank, far, ts",
            "SELECT count(*) FROM test.steps WHERE random() < 2",
        )
    ), False


_OTHERS = (_join, _join, _window, _nested, _nested, _set, _odd, _odd)
