"""One statement over many hosts: what is asked of them, in which order, and what is left to compute here.

Runs in the CLI on its event loop. Scalar subqueries come first, each level of nesting in a round of its own: their
values become constants that hosts can compare with. One more round asks for the parts of every SELECT that can be split
(split.py) and fetches what the statement needs of all other tables (scans.py). The rest runs in our own DuckDB, under
the limits that hosts have.

A host that fails in a later round has its part in what earlier rounds gave: the statement is run again without it. It
is also run again if hosts have other tables than one of them told for all (schema_discovery.py).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from probe_agent.errors import NoAnswer, QueryFailed
from probe_agent.sql.merging import MergedDatabase, RefusedStatement
from probe_agent.wire import QueryRequest
from probe_cli.cluster.fanout import Conversation

from .functions import with_one_time
from .rounds import GuessedWrong, Rounds
from .scans import fetched
from .schema_discovery import discover
from .split import Part, Splitter, Unsplittable
from .tree import Tree, expressions, replaced, tables_named

if TYPE_CHECKING:
    from probe_agent.sql.engine.request import Answer

__all__ = ["answer"]

#: Statements that ask which tables there are, without naming one.
_LISTS_TABLES = re.compile(r"\b(show|information_schema|duckdb_\w+|pg_\w+|sqlite_\w+)\b", re.IGNORECASE)
_EXPLAIN = re.compile(r"\s*explain\b(\s+analyze\b)?", re.IGNORECASE)
#: Values of these types can be written as text and read again without loss.
_WRITABLE = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT|U?INTEGER|DOUBLE|VARCHAR|BOOLEAN|DATE|TIMESTAMP.*|DECIMAL.*")
_MAX_RUNS = 4


async def answer(
    conversation: Conversation, request: QueryRequest, *, max_bytes: int, host_timeout_s: float, arrow: bool
) -> Answer | None:
    """Return the answer over the rows of all members that stay; None when none does. Raises QueryFailed."""
    may_guess = True
    for _ in range(_MAX_RUNS):
        num_present = len(conversation.present)
        with closing(MergedDatabase(request)) as database:
            rounds = Rounds(conversation, database, request, max_bytes, host_timeout_s)
            run = _Run(rounds, database)
            try:
                sql = await run.ask_hosts(request.sql, may_guess)
            except (GuessedWrong, QueryFailed) as failure:
                if not rounds.is_guessed or failure is rounds.refusal:
                    raise
                may_guess = False
                for member in conversation.members:
                    if isinstance(member.error, QueryFailed):
                        member.error = None  # what was asked of it may have been wrong
                continue
            if not conversation.present:
                return None
            if rounds.contributed <= set(conversation.present):
                read = database.arrow if arrow else database.json
                try:
                    found = await asyncio.to_thread(read, sql, rounds.notes())
                    return replace(found, missing=rounds.missing())
                except asyncio.CancelledError:
                    database.cancel()
                    raise
        if len(conversation.present) == num_present:
            break
    raise NoAnswer("hosts keep failing while they are asked", "try again, without the hosts named above")


@dataclass
class _Run:
    rounds: Rounds
    database: MergedDatabase
    num_tables: int = 0

    async def ask_hosts(self, sql: str, may_guess: bool) -> str:
        """Fill tables of ours with what hosts send; returns the SQL that answers the statement out of them."""
        sql = self.database.only_statement(sql)
        explained = _EXPLAIN.match(sql)
        sql = sql[explained.end() :] if explained else sql
        tree = self.database.parsed(sql)  # None for DESCRIBE and its like
        names = [] if tree is None or _LISTS_TABLES.search(sql) else tables_named(tree)
        await self.rounds.discover(names, may_guess=may_guess and bool(names))
        if self.rounds.conversation.present:
            await self._check(sql)
            sql = sql if tree is None else await self._ask_parts(sql, tree)
        return _steps(self.rounds.steps) if explained else sql

    async def _check(self, sql: str) -> None:
        """Raise QueryFailed for a statement that cannot be answered, before anybody is asked."""
        columns = {name: list(table.columns) for name, table in self.rounds.tables.items()}
        try:
            self.database.check(sql, columns)
        except QueryFailed:  # its hint names similar tables, so we need to know of all
            everything, _ = await discover(self.rounds.conversation, self.database, (), may_guess=True)
            self.database.check(sql, {name: list(table.columns) for name, table in everything.items()} | columns)

    async def _ask_parts(self, sql: str, tree: Tree) -> str:
        tables = {name: table.columns for name, table in self.rounds.tables.items()}
        splitter = Splitter(self.database, tables)
        try:
            first = _titled(tree, [name for name, _ in self.database.described(sql)])
        except RefusedStatement:  # SHOW and its like
            first = tree
        columns = {name.lower() for table in tables.values() for name in table}
        root = await self._with_values(splitter, with_one_time(first, columns, self.database))
        root, parts = self._with_parts(splitter, root)
        sql = sql if root is first else self.database.text_of(root)
        left = {name: tables[name] for name in tables_named(root) if name in tables}
        await self.rounds.ask([*parts, *fetched(self.database, splitter, sql, left)])
        return sql

    def _new_table(self) -> str:
        self.num_tables += 1
        return f"_probe.parts{self.num_tables}"

    async def _with_values(self, splitter: Splitter, root: Tree) -> Tree:
        """Return `root` with each scalar subquery that can be split replaced by its value, inner ones first."""
        while True:
            asked: list[tuple[Tree, str, Part, str]] = []
            for node in expressions(root):
                if node["class"] != "SUBQUERY" or node["subquery_type"] != "SCALAR":
                    continue
                try:
                    part, merged = splitter.split(node["subquery"]["node"], self._new_table())
                except Unsplittable:
                    continue
                sql = self.database.text_of(merged)
                kinds = [kind for _, kind in self.database.described(sql)]
                if len(kinds) == 1 and _WRITABLE.fullmatch(kinds[0]):
                    asked.append((node, sql, part, kinds[0]))
            if not asked:
                return root
            await self.rounds.ask([part for _, _, part, _ in asked])
            values = {id(node): self._value(node, sql, kind) for node, sql, _, kind in asked}
            root = replaced(root, partial(_by_id, values))

    def _value(self, subquery: Tree, sql: str, kind: str) -> Tree:
        """Return the value of `sql` as a constant; one of many rows is left to fail as it would anywhere."""
        values = self.database.value(f"SELECT COLUMNS(*)::VARCHAR FROM ({sql}) LIMIT 2")
        if len(values) > 1:
            return {**subquery, "subquery": {**subquery["subquery"], "node": self.database.parsed(sql)}}
        text = "NULL" if not values or values[0] is None else _literal(values[0])
        return {**self.database.expression(f"CAST({text} AS {kind})"), "alias": subquery["alias"]}

    def _with_parts(self, splitter: Splitter, root: Tree) -> tuple[Tree, list[Part]]:
        """Return `root` with each SELECT that can be split replaced by the one that merges its parts."""
        parts = []

        def merged(node: dict[str, Tree]) -> Tree | None:
            if node.get("type") != "SELECT_NODE":
                return None
            max_rows = self.rounds.request.max_rows if node is root else None
            try:
                part, tree = splitter.split(node, self._new_table(), max_rows)
            except Unsplittable:
                return None
            parts.append(part)
            return tree

        new = replaced(root, merged)
        return (new, parts) if parts else (root, parts)


def _by_id(values: dict[int, Tree], node: Tree) -> Tree | None:
    return values.get(id(node))


def _titled(root: Tree, names: list[str]) -> Tree:
    """Return `root` with its columns called `names`, whatever takes the place of their expressions."""
    items = root.get("select_list")
    if items is None or len(items) != len(names) or any(item["class"] == "STAR" for item in items):
        return root
    return {**root, "select_list": [{**item, "alias": name} for item, name in zip(items, names, strict=True)]}


def _steps(steps: Sequence[tuple[str, int, int, int, str]]) -> str:
    """Return the answer of EXPLAIN in SQL."""
    values = [
        f"({at}, '{step[0]}', {step[1]}, {step[2]}, {step[3]}, {_literal(step[4])})" for at, step in enumerate(steps, 1)
    ]
    rows = f"VALUES {', '.join(values)}" if values else "SELECT 0, '', 0, 0, 0, '' WHERE false"
    return f"SELECT * FROM ({rows}) AS t(round, reads, hosts, rows, bytes, asked)"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
