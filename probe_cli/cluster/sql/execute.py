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
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from probe_agent.errors import NoAnswer, QueryFailed
from probe_agent.sql.merging import MergedDatabase, NotThere
from probe_agent.wire import QueryRequest, quoted
from probe_cli.cluster.fanout import Conversation

from .clocks import with_one_time
from .rounds import GuessedWrong, Limits, Rounds, Step
from .scans import needs
from .schema_discovery import discover
from .split import Part, Splitter, Unsplittable
from .tree import Tree, column, expressions, replaced, tables_named, walk

if TYPE_CHECKING:
    from probe_agent.sql.engine.request import Answer

__all__ = ["Outcome", "answer"]

#: Statements that ask which tables there are, without naming one.
_LISTS_TABLES = re.compile(r"\b(show|information_schema|duckdb_\w+|pg_\w+|sqlite_\w+)\b", re.IGNORECASE)
_EXPLAIN = re.compile(r"\s*explain\b(\s+analyze\b)?", re.IGNORECASE)
#: Values of these types can be written as text and read again without loss.
_WRITABLE = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT|U?INTEGER|DOUBLE|VARCHAR|BOOLEAN|DATE|TIMESTAMP.*|DECIMAL.*")
_MAX_RUNS = 4


@dataclass(frozen=True)
class Outcome:
    """The answer, and what was asked of the hosts for it."""

    answer: Answer
    steps: tuple[Step, ...]


async def answer(
    conversation: Conversation, request: QueryRequest, *, max_bytes: int, host_timeout_s: float, arrow: bool
) -> Outcome | None:
    """Return the answer over the rows of all members that stay; None when none does. Raises QueryFailed."""
    limits = Limits(max_bytes, host_timeout_s)
    may_guess = True
    for _ in range(_MAX_RUNS):
        num_present = len(conversation.present)
        with closing(MergedDatabase(request)) as database:
            run = await _Run.start(conversation, database, request, limits, may_guess)
            try:
                sql = await run.ask_hosts()
            except (GuessedWrong, QueryFailed) as failure:
                if not run.rounds.is_guessed or failure is run.rounds.refusal:
                    raise
                may_guess = False
                for member in conversation.members:
                    if isinstance(member.error, QueryFailed):
                        member.error = None  # what was asked of it may have been wrong
                continue
            if not conversation.present:
                return None
            if run.rounds.contributed <= set(conversation.present):
                return Outcome(await run.read(sql, arrow), tuple(run.rounds.steps))
        if len(conversation.present) == num_present:
            break
    raise NoAnswer("hosts keep failing while they are asked", "try again, without the hosts named above")


@dataclass
class _Run:
    database: MergedDatabase
    rounds: Rounds
    sql: str
    explains: bool
    tree: Tree | None  # None for DESCRIBE and its like
    num_tables: int = 0

    @classmethod
    async def start(
        cls,
        conversation: Conversation,
        database: MergedDatabase,
        request: QueryRequest,
        limits: Limits,
        may_guess: bool,
    ) -> _Run:
        """Read the statement and find out about its tables."""
        sql = database.only_statement(request.sql)
        found = _EXPLAIN.match(sql)
        sql = sql[found.end() :] if found else sql
        tree = database.parsed(sql)
        names = [] if tree is None or _LISTS_TABLES.search(sql) else tables_named(tree)
        tables, is_guessed = await discover(conversation, database, names, may_guess=may_guess and bool(names))
        for table in tables.values():
            database.create(table.name, table.columns)
        rounds = Rounds(conversation, database, request, limits, tables, is_guessed)
        return cls(database, rounds, sql, bool(found), tree)

    async def ask_hosts(self) -> str:
        """Fill tables of ours with what hosts send; gives the SQL that answers the statement out of them."""
        if not self.rounds.conversation.present:
            return ""
        await self._check()
        if self.tree is None:
            return self.sql
        tables = {name: table.columns for name, table in self.rounds.tables.items()}
        splitter = Splitter(self.database, tables)
        try:
            first = _titled(self.tree, [name for name, _ in self.database.described(self.sql)])
        except NotThere:  # SHOW and its like
            first = self.tree
        names = {name.lower() for columns in tables.values() for name in columns}
        root = await self._with_values(splitter, with_one_time(first, names, self.database))
        root, parts = self._with_parts(splitter, root)
        text = self.sql if root is first else self.database.text_of(root)
        await self.rounds.ask([*parts, *self._fetched(splitter, text, tables_named(root))])
        return text

    async def read(self, sql: str, arrow: bool) -> Answer:
        """Return the answer, or for EXPLAIN what was asked. Cancelling it ends the worker."""
        if self.explains:
            sql = _explained(self.rounds.steps)
        try:
            return await asyncio.to_thread(
                self.database.arrow if arrow else self.database.json, sql, self.rounds.notes()
            )
        except asyncio.CancelledError:
            self.database.cancel()
            raise

    async def _check(self) -> None:
        """Raise QueryFailed for a statement that cannot be answered, before anybody is asked."""
        columns = {name: list(table.columns) for name, table in self.rounds.tables.items()}
        try:
            self.database.check(self.sql, columns)
        except QueryFailed:  # its hint names similar tables, so we need to know of all
            conversation = self.rounds.conversation
            everything, _ = await discover(conversation, self.database, (), may_guess=True)
            others = {name: list(table.columns) for name, table in everything.items()}
            self.database.check(self.sql, others | columns)

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

    def _fetched(self, splitter: Splitter, text: str, names: Collection[str]) -> list[Part]:
        """Return what `text` needs of the tables `names`, as they are."""
        parts = []
        tables = {name: self.rounds.tables[name].columns for name in names if name in self.rounds.tables}
        for name, need in needs(self.database, splitter, text, tables).items():
            types = tables[name]
            wanted = need.columns or tuple(types)[:1]  # any column tells how many rows there are
            select = self.database.parsed(f"SELECT 1 FROM {quoted(*name.rsplit('.', 1))}")
            select = {**select, "select_list": [column(each) for each in wanted], "where_clause": need.rows}
            filtered_by = {node["column_names"][0].lower() for node in walk(need.rows) if "column_names" in node}
            uses = frozenset(each for each in types if each in wanted or each.lower() in filtered_by)
            parts.append(Part(name, select, uses, name, [(each, types[each]) for each in wanted]))
        return parts


def _by_id(values: dict[int, Tree], node: Tree) -> Tree | None:
    return values.get(id(node))


def _titled(root: Tree, names: list[str]) -> Tree:
    """Return `root` with its columns called `names`, whatever takes the place of their expressions."""
    items = root.get("select_list")
    if items is None or len(items) != len(names) or any(item["class"] == "STAR" for item in items):
        return root
    return {**root, "select_list": [{**item, "alias": name} for item, name in zip(items, names, strict=True)]}


def _explained(steps: Collection[Step]) -> str:
    """Return the answer of EXPLAIN in SQL."""
    rows = [
        f"({at}, '{step.table}', {step.num_hosts}, {step.num_rows}, {step.num_bytes}, {_literal(step.sql)})"
        for at, step in enumerate(steps, 1)
    ]
    columns = "round, reads, hosts, rows, bytes, asked"
    values = ", ".join(rows) or "(0, '', 0, 0, 0, '')"
    return f"SELECT * FROM (VALUES {values}) AS t({columns}) {'' if rows else 'WHERE false'}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
