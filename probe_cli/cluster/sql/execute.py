"""One statement over many hosts, in rounds: which tables there are, then whatever each host can compute or must send.

Where the hosts have other tables than was thought (learned.py), the course is run again.

Runs in the CLI on its event loop. First each SELECT inside the statement that can be split (split.py) is answered and
takes the place of its tables, inner ones first; then, if the whole cannot be split itself, the columns and rows that
it still needs are fetched (scans.py). What is left runs in our own DuckDB, under the limits that hosts have.

A host that fails in a later round has its part in what earlier rounds gave: the course is run again without it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from probe_agent.errors import Forbidden, NoAnswer, QueryFailed
from probe_agent.wire import QueryRequest
from probe_cli.cluster.fanout import Conversation, Member

from .database import malformed_answer, not_there, open_merged
from .functions import CLOCKS
from .scans import needs
from .schema_discovery import Learned, Otherwise
from .split import Split, Splitter, Unsplittable
from .tables import KnownTable, columns_of
from .transfer import Transfer
from .tree import Tree, replaced, tables_named, walk

if TYPE_CHECKING:
    from probe_agent.sql.engine.request import Answer
    from probe_agent.sql.merging import MergedDatabase
    from probe_cli.client import Data

__all__ = ["ARROW", "Outcome", "Step", "answer"]

ARROW = "application/vnd.apache.arrow.stream"
#: Partial answers are not cut: --max-transfer limits them, and --max-rows is for the whole.
_ALL_ROWS = 2**31
#: Statements that ask which tables there are, without naming one.
_LISTS_TABLES = re.compile(r"\b(show|information_schema|duckdb_\w+|pg_\w+|sqlite_\w+)\b", re.IGNORECASE)
_EXPLAIN = re.compile(r"\s*explain\b(\s+analyze\b)?", re.IGNORECASE)
#: A value of these types can be written down as text and read again without loss.
_WRITABLE = re.compile(
    r"(U?(TINY|SMALL|BIG|HUGE)?INT|INTEGER|UINTEGER|DOUBLE|VARCHAR|BOOLEAN|DATE|TIMESTAMP.*|DECIMAL.*)"
)
_MAX_RUNS = 4


@dataclass(frozen=True)
class Step:
    """One round: what each host was asked, and what came of it."""

    table: str
    sql: str
    num_hosts: int
    num_rows: int
    num_bytes: int


@dataclass(frozen=True)
class Outcome:
    """The answer, and how it came about."""

    answer: Answer
    steps: tuple[Step, ...]


@dataclass
class _Part:
    """What to ask of one table: a SELECT as a tree, the columns it sends, and where they go."""

    table: KnownTable
    select: Tree
    uses: tuple[str, ...]
    into: str
    columns: Sequence[tuple[str, str]]


#: What one member has sent of each part.
_Received: TypeAlias = "Sequence[tuple[_Part, Data]]"


async def answer(
    conversation: Conversation, request: QueryRequest, *, max_bytes: int, host_timeout_s: float, arrow: bool
) -> Outcome | None:
    """The answer over the rows of all members that stay; None when nobody does. Raises QueryFailed."""
    may_guess = True
    for _ in range(_MAX_RUNS):
        num_present = len(conversation.present)
        with closing(open_merged(request)) as database:
            learned = Learned(conversation, database)
            course = _Course(database, conversation, request, Transfer(max_bytes), host_timeout_s, learned)
            try:
                sql = await course.run(may_guess)
            except (Otherwise, QueryFailed) as failure:
                if not learned.is_guessed or failure is course.transfer.refusal:
                    raise
                may_guess = False
                for member in conversation.members:
                    if isinstance(member.error, QueryFailed):
                        member.error = None  # it may be right, and what was asked of it wrong
                continue
            if not conversation.present:
                return None
            if course.contributed <= set(conversation.present):
                return Outcome(await course.read(sql, arrow), tuple(course.steps))
        if len(conversation.present) == num_present:
            break
    raise NoAnswer("hosts keep failing while they are asked", "try again; see above for who did and why")


@dataclass
class _Course:
    database: MergedDatabase
    conversation: Conversation
    request: QueryRequest
    transfer: Transfer
    host_timeout_s: float
    learned: Learned
    contributed: set[Member] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    explains: bool = False
    _num_names: int = 0

    @property
    def tables(self) -> dict[str, KnownTable]:
        return self.learned.tables

    async def run(self, may_guess: bool) -> str:
        """Ask the hosts; gives the SQL that answers the statement out of what they have sent."""
        sql = self.database.only_statement(self.request.sql)
        if found := _EXPLAIN.match(sql):
            self.explains, sql = True, sql[found.end() :]
        tree = self.database.parsed(sql)
        named = [] if tree is None or _LISTS_TABLES.search(sql) else tables_named(tree)
        await self.learned.learn(named, may_guess=may_guess)
        for name, table in self.tables.items():
            if not named or name in named:
                self.database.create(name, table.columns)  # an empty one
        if not self.conversation.present:
            return ""
        await self._check(sql)
        if tree is None:
            return sql
        splitter = Splitter(self.database, columns_of(self.tables))
        root = tree["statements"][0]["node"]
        names = self._names(sql)
        first, root = root, self._with_one_time(root, names)
        while (inner := await self._inner_replaced(splitter, root)) is not None:
            root = _titled(inner, names)
        text = sql if root is first else self._text(root)
        merged = await self._ask_split(splitter, root, names, text)
        if merged is not None:
            return merged
        await self._fetch(splitter, text)
        return text

    async def read(self, sql: str, arrow: bool) -> Answer:
        """The answer. Cancelling it ends the worker."""
        if self.explains:
            sql = self._explained()
        read = self.database.arrow if arrow else self.database.json
        try:
            return await asyncio.to_thread(read, sql, self._folded_notes())
        except asyncio.CancelledError:
            self.database.cancel()
            raise

    async def _check(self, sql: str) -> None:
        """Raise QueryFailed for a statement that could not be answered by anybody, before anybody is asked."""
        try:
            self.database.check(sql, self._columns_by_table())
        except QueryFailed:
            await self.learned.learn_of_others()  # so that the hint can name them
            self.database.check(sql, self._columns_by_table())

    def _names(self, sql: str) -> list[str]:
        try:
            return [name for name, _ in self.database.described(sql)]
        except not_there():
            return []  # DESCRIBE and its like describe themselves

    def _columns_by_table(self) -> dict[str, list[str]]:
        return {name: list(table.columns) for name, table in self.tables.items()}

    # -- parts that are split ---------------------------------------------------------------------------------------

    async def _inner_replaced(self, splitter: Splitter, root: Tree) -> Tree | None:
        """`root` with one SELECT inside it that can be split replaced by its answer; None when there is none left."""
        for node in walk(root):
            if node is root or node.get("type") != "SELECT_NODE":
                continue
            try:
                split = splitter.split(node, None, None)
                if not split.aggregated and not _is_cut(node):
                    continue  # its rows are fetched, with what is around it in mind
                into = self._new_name()
                merged = await self._ask_parts(split, into)
                self.database.create_as(into, merged)
            except (Unsplittable, not_there()):
                continue
            value = self._scalar(into)
            new = splitter.query(f"SELECT * FROM {into}")
            return replaced(root, partial(_in_place, node=node, new=new, value=value))
        return None

    def _scalar(self, table: str) -> Tree | None:
        """The only value in `table` as a constant, if it is one that can be written down."""
        columns = self.database.described(f"SELECT * FROM {table}")
        if len(columns) != 1 or not _WRITABLE.fullmatch(columns[0][1]):
            return None
        values = self.database.value(f"SELECT COLUMNS(*)::VARCHAR FROM {table} LIMIT 2")
        if len(values) > 1:
            return None
        text = "NULL" if not values or values[0] is None else "'" + values[0].replace("'", "''") + "'"
        constant: Tree = self.database.parsed(f"SELECT CAST({text} AS {columns[0][1]})")
        return constant["statements"][0]["node"]["select_list"][0]

    def _new_name(self) -> str:
        self._num_names += 1
        return f"_probe.answer{self._num_names}"

    async def _ask_split(self, splitter: Splitter, root: Tree, names: list[str], text: str) -> str | None:
        """The SQL over the parts of the whole statement; None when it cannot be split."""
        try:
            split = splitter.split(root, names, self.request.max_rows)
            kinds = [kind for _, kind in self.database.described(text)]
            return await self._ask_parts(split, self._new_name(), kinds)
        except (Unsplittable, not_there()):
            return None

    async def _ask_parts(self, split: Split, into: str, kinds: Sequence[str] = ()) -> str:
        """Have the hosts compute their parts; gives the SQL that puts them together, its columns of `kinds`.
        Raises Unsplittable or NotThere, both before anybody is asked."""
        parts = into.replace("answer", "parts")
        described = self.database.described(self._text(split.host))
        self.database.create(parts, dict(zip(split.columns, (kind for _, kind in described), strict=True)))
        merged = split.merged_over(parts)
        found = [kind for _, kind in self.database.described(self._text(merged))]
        if kinds and found != list(kinds):
            merged = {**merged, "select_list": [
                item if was == kind else self._cast(item, kind)
                for item, was, kind in zip(merged["select_list"], found, kinds, strict=True)
            ]}  # fmt: skip
        sql = self._text(merged)
        if kinds and [kind for _, kind in self.database.described(sql)] != list(kinds):
            raise Unsplittable("its parts have other types")
        columns = [(name, kind) for name, (_, kind) in zip(split.columns, described, strict=True)]
        table = self.tables[split.table]
        await self._ask([_Part(table, split.host, tuple(sorted(split.uses)), parts, columns)])
        return sql

    def _cast(self, item: Tree, kind: str) -> Tree:
        template = self.database.parsed(f"SELECT CAST(_item AS {kind})")["statements"][0]["node"]["select_list"][0]
        bare = {**item, "alias": ""}
        cast: Tree = replaced(template, lambda node: bare if node.get("column_names") == ["_item"] else None)
        return {**cast, "alias": item["alias"]}

    # -- the rest is fetched ----------------------------------------------------------------------------------------

    async def _fetch(self, splitter: Splitter, text: str) -> None:
        """Fill our tables with what `text` needs of them."""
        named = set(tables_named(self.database.parsed(text)))
        columns = {name: table.columns for name, table in self.tables.items() if name in named}
        parts = []
        needed = needs(self.database, splitter, text, columns)
        if self.learned.is_guessed and any(need.rows is None for need in needed.values()):
            await self.learned.make_sure_of(self.conversation.present)  # how many rows there are
        for name, need in needed.items():
            table = self.tables[name]
            wanted = need.columns or tuple(table.columns)[:1]  # how many rows there are is asked of any column
            if need.rows is None:
                self.transfer.expect(name, table.estimated_bytes(wanted), len(table.had_by))
            shown = ", ".join(_quoted(column) for column in wanted)
            schema, _, bare = name.rpartition(".")
            select = splitter.query(f"SELECT {shown} FROM {_quoted(schema)}.{_quoted(bare)}")
            select = {**select, "where_clause": need.rows}
            filtered_by = {node["column_names"][0] for node in walk(need.rows) if "column_names" in node}
            uses = tuple(c for c in table.columns if c in wanted or c.lower() in {f.lower() for f in filtered_by})
            parts.append(_Part(table, select, uses, name, [(c, table.columns[c]) for c in wanted]))
        if parts:
            await self._ask(parts)

    # -- rounds -----------------------------------------------------------------------------------------------------

    async def _ask(self, parts: Sequence[_Part]) -> None:
        """One round: every host answers all `parts`, or has no part in the whole."""
        texts: dict[tuple[str, str], str] = {}
        timeout_s = min(self.host_timeout_s, self.request.timeout_s)

        async def question(member: Member) -> _Received:
            received = []
            for part in parts:
                if member not in part.table.had_by:
                    self._note(member, f"there is no table {part.table.name}: no rows of it")
                    continue
                if missing := part.table.missing(member, part.uses):
                    self._note(member, f"{part.table.name} has no {', '.join(missing)}: NULL")
                sql = self._asked_of(member, part, texts)
                request = QueryRequest(sql, _ALL_ROWS, timeout_s, self.request.memory_mb)
                count = partial(self.transfer.receive, part.table.name)
                received.append((part, await member.client.data("/v1/query", request, ARROW, count)))
            return received

        answers = await self.conversation.ask(question)
        if self.transfer.refusal is not None:
            raise self.transfer.refusal
        if self.learned.is_guessed and answers:
            await self.learned.make_sure([member for member, received in answers if _has_other_tables(received)])
            answers = [(member, received) for member, received in answers if member.error is None]
        self._blame(answers)
        for member, received in answers:
            for note in [note for _, data in received for note in data.notes]:
                self._note(member, note)
        num_rows = self._fill(answers)
        for part in parts:
            sizes = [len(data.body) for _, received in answers for each, data in received if each is part]
            self.steps.append(Step(part.table.name, self._text(part.select), len(sizes), num_rows, sum(sizes)))

    def _fill(self, answers: Sequence[tuple[Member, _Received]]) -> int:
        """Put what has come into our tables; gives how many rows. Who has sent what does not fit has not answered."""
        streams = [(member, data.body) for member, received in answers for _, data in received]
        wrong = {streams[at][0]: why for at, why in self.database.undecodable([data for _, data in streams]).items()}
        fitting = {member: received for member, received in answers if member not in wrong}
        num_rows = 0
        try:
            num_rows = self.database.fill(_to_fill(each for received in fitting.values() for each in received))
        except malformed_answer():
            for member, received in fitting.items():
                try:
                    num_rows += self.database.fill(_to_fill(received))
                except malformed_answer() as failure:
                    wrong[member] = str(failure)
        for member, why in wrong.items():
            member.error = NoAnswer(
                f"{member.endpoint} answered with something that is not ours ({why})",
                "is that the port of `probe serve`, and is its version ours?",
            )
        self.contributed.update(member for member in fitting if member not in wrong)
        return num_rows

    def _blame(self, answers: Sequence[object]) -> None:
        """An error that all have in common is the question's (its SQL is wrong, it asks for more than it may); that of
        some is theirs: they did not answer."""
        failed = [member for member in self.conversation.members if isinstance(member.error, QueryFailed | Forbidden)]
        if failed and not answers:
            error = failed[0].error
            assert error is not None
            raise error
        for member in failed:
            error = member.error
            assert error is not None
            member.error = NoAnswer(f"{member.endpoint}: {error.message}", error.hint)

    def _asked_of(self, member: Member, part: _Part, texts: dict[tuple[str, str], str]) -> str:
        """The SQL of `part` for this member, whose table may lack columns or have other types."""
        shape = "" if part.table.fits(member, part.uses) else part.table.shaped(member, part.uses)
        if (part.into, shape) not in texts:
            select = part.select
            if shape:
                source = self.database.parsed(f"SELECT * FROM ({shape}) AS shaped")
                select = {**select, "from_table": source["statements"][0]["node"]["from_table"]}
            texts[part.into, shape] = self._text(select)
        return texts[part.into, shape]

    # -- words ------------------------------------------------------------------------------------------------------

    def _with_one_time(self, root: Tree, names: list[str]) -> Tree:
        """`root` with one time for all hosts and rounds: what reads the clock becomes a constant."""
        columns = {name.lower() for table in self.tables.values() for name in table.columns}

        def clock(node: Tree) -> str:
            if node.get("class") == "FUNCTION" and not (node.get("arguments") or node.get("children")):
                name = node["function_name"].lower()
            elif node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
                name = node["column_names"][0].lower()
                name = "" if name in columns else name
            else:
                return ""
            return name if name in CLOCKS else ""

        read = {clock(node): node for node in walk(root) if clock(node)}
        if not read:
            return root
        shown = ", ".join(f"typeof({_call(name)}), {_call(name)}::VARCHAR" for name in read)
        values = self.database.value(f"SELECT unnest([{shown}])")
        constants = {}
        for name, kind, value in zip(read, values[::2], values[1::2], strict=True):
            tree = self.database.parsed(f"SELECT CAST('{value}' AS {kind})")
            constants[name] = tree["statements"][0]["node"]["select_list"][0]

        def constant(node: dict[str, Tree]) -> Tree | None:
            name = clock(node)
            return {**constants[name], "alias": node.get("alias", "")} if name else None

        return _titled(replaced(root, constant), names)

    def _text(self, node: Tree) -> str:
        return self.database.text_of({"error": False, "statements": [{"node": node, "named_param_map": []}]})

    def _note(self, member: Member, note: str) -> None:
        said_by = self.notes.setdefault(note, [])
        if str(member.endpoint) not in said_by:
            said_by.append(str(member.endpoint))

    def _folded_notes(self) -> list[str]:
        """Each note once, with those who said it."""
        num = len(self.conversation.members)
        folded = []
        for note, said_by in self.notes.items():
            who = ", ".join(said_by[:4]) + (f" and {len(said_by) - 4} more" if len(said_by) > 4 else "")
            folded.append(f"all: {note}" if len(said_by) == num else f"{who}: {note}")
        return folded

    def _explained(self) -> str:
        """The rounds as an answer in SQL, for EXPLAIN."""
        rows = [
            f"({at + 1}, {_text(step.table)}, {step.num_hosts}, {step.num_rows}, {step.num_bytes}, {_text(step.sql)})"
            for at, step in enumerate(self.steps)
        ]
        columns = "round, reads, hosts, rows, bytes, asked"
        if not rows:
            return f"SELECT * FROM (VALUES (0, '', 0, 0, 0, '')) AS t({columns}) WHERE false"
        return f"SELECT * FROM (VALUES {', '.join(rows)}) AS t({columns})"


def _has_other_tables(received: _Received) -> bool:
    """Whether a member may have other tables than was thought, as its answers say; an older one says nothing."""
    return any(data.tables.get(part.table.name) != part.table.shape for part, data in received)


def _to_fill(received: Iterable[tuple[_Part, Data]]) -> list[tuple[str, Sequence[tuple[str, str]], bytes]]:
    return [(part.into, part.columns, data.body) for part, data in received]


def _is_cut(node: Tree) -> bool:
    """Whether a SELECT gives fewer rows than it reads, if it computes no aggregates."""
    return any(modifier["type"] in ("LIMIT_MODIFIER", "DISTINCT_MODIFIER") for modifier in node["modifiers"])


def _in_place(each: Tree, node: Tree, new: Tree, value: Tree | None) -> Tree | None:
    """What takes the place of `each`: of a subquery that is one value this value, of the SELECT `node` another."""
    is_value = each.get("class") == "SUBQUERY" and each.get("subquery_type") == "SCALAR"
    if value is not None and is_value and each["subquery"]["node"] is node:
        return {**value, "alias": each.get("alias", "")}
    return new if each is node else None


def _titled(root: Tree, names: list[str]) -> Tree:
    """`root` with its columns called `names`, as the statement called them before it was changed."""
    items = root.get("select_list")
    if items is None or len(items) != len(names) or any(item["class"] == "STAR" for item in items):
        return root
    return {**root, "select_list": [{**item, "alias": name} for item, name in zip(items, names, strict=True)]}


def _call(clock: str) -> str:
    return clock if clock.startswith(("current_", "local")) else f"{clock}()"


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
