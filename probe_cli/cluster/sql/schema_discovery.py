"""Which hosts have which tables with which columns, and one shape of each table for all hosts.

Hosts may run different versions: a column that one lacks is NULL there, a table that one lacks has no rows there, and
both are noted. Where types differ, that of most hosts holds. Hosts of one version have the same tables, so of many only
three are asked and the first answer is taken for all; each answer to a query tells the shape of its tables, and a host
with another shape ends the guess (rounds.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from probe_agent.errors import NoAnswer
from probe_agent.sql.merging import MergedDatabase
from probe_agent.wire import TableInfo, TableList, quoted
from probe_cli.cluster.fanout import Conversation, Member

__all__ = ["KnownTable", "discover", "known_tables", "unreadable"]

#: Hosts that are asked when all are expected to have the same tables.
_NUM_CANDIDATES = 3
#: What a value takes on the wire, roughly; all but texts are numbers of 8 bytes.
_TEXT_BYTES, _NUMBER_BYTES = 20, 8


@dataclass(frozen=True)
class KnownTable:
    """One table: its columns with their types, and those and the number of rows that each member has of it."""

    name: str
    columns: dict[str, str]
    had_by: dict[Member, dict[str, str]]
    num_rows: dict[Member, int]

    def missing(self, member: Member, columns: Iterable[str]) -> list[str]:
        """Return which of `columns` `member` lacks."""
        return [column for column in columns if column not in self.had_by[member]]

    def source(self, member: Member, columns: Collection[str]) -> str:
        """Return SQL that gives the table of `member` the common shape, empty where it has that."""
        had = self.had_by[member]
        if all(had.get(column) == self.columns[column] for column in columns):
            return ""
        shown = [
            f"CAST({quoted(name) if name in had else 'NULL'} AS {kind}) AS {quoted(name)}"
            for name, kind in self.columns.items()
            if name in columns
        ]
        return f"SELECT {', '.join(shown)} FROM {quoted(*self.name.rsplit('.', 1))}"

    def estimated_bytes(self, columns: Iterable[str]) -> int:
        """Return about how much `columns` of all rows are. Live tables are not counted."""
        width = sum(_TEXT_BYTES if self.columns[column] == "VARCHAR" else _NUMBER_BYTES for column in columns)
        return sum(self.num_rows.values()) * width


async def discover(
    conversation: Conversation, database: MergedDatabase, names: Collection[str], *, may_guess: bool
) -> tuple[dict[str, KnownTable], bool]:
    """Return the tables `names` (all, without) by name, and whether one member has told for the others."""

    async def tables_of(member: Member) -> list[TableInfo]:
        listed = await member.client.get(TableList, "/v1/tables", names=",".join(names))
        tables = [_checked(member, table, database.is_type) for table in listed.tables]
        return [table for table in tables if not names or table.name.lower() in names]

    present = conversation.present
    if may_guess and len(present) > _NUM_CANDIDATES:
        first = await conversation.first(tables_of, present[:_NUM_CANDIDATES])
        if first is not None and set(names) <= {table.name.lower() for table in first[1]}:
            return known_tables([(member, first[1]) for member in conversation.present]), True
    return known_tables(await conversation.ask(tables_of)), False


def known_tables(answers: Iterable[tuple[Member, Iterable[TableInfo]]]) -> dict[str, KnownTable]:
    """Return the tables of all members by their names in lower case."""
    described: dict[str, list[tuple[Member, TableInfo]]] = {}
    for member, listed in answers:
        for table in listed:
            described.setdefault(table.name.lower(), []).append((member, table))
    return {
        name: KnownTable(
            name,
            _common_columns([table for _, table in tables]),
            {member: {column.name: column.type for column in table.columns} for member, table in tables},
            {member: max(0, table.rows or 0) for member, table in tables},
        )
        for name, tables in sorted(described.items())
    }


def _common_columns(described: list[TableInfo]) -> dict[str, str]:
    """Return all columns of all versions, in the order of the version that has most."""
    types: dict[str, Counter[str]] = {}
    spellings: dict[str, str] = {}
    for table in sorted(described, key=lambda table: -len(table.columns)):
        for column in table.columns:
            name = spellings.setdefault(column.name.lower(), column.name)
            types.setdefault(name, Counter())[column.type] += name == column.name
    return {name: counted.most_common(1)[0][0] for name, counted in types.items()}


def _checked(member: Member, table: TableInfo, is_type: Callable[[str], bool]) -> TableInfo:
    """Return `table` if a host server of ours can have said it. Raises NoAnswer."""
    types = [column.type for column in table.columns]
    names = [column.name for column in table.columns]
    if not all(isinstance(text, str) for text in (table.name, *names, *types)) or not isinstance(
        table.rows, int | None
    ):
        raise unreadable(member, f"its description of table {table.name!r:.40} is malformed")
    if wrong := [kind for kind in types if not is_type(kind)]:
        raise unreadable(member, f"{wrong[0]!r:.40} is not a column type")
    if any(character in table.name for character in '"\0') or "." not in table.name:
        raise unreadable(member, f"{table.name!r:.40} is not a table name")
    if not names or len({name.lower() for name in names}) < len(names):
        raise unreadable(member, f"table {table.name} has no columns, or two of one name")
    return table


def unreadable(member: Member, seen: str) -> NoAnswer:
    """Return the error for an answer that no host server gives."""
    return NoAnswer(
        f"{member.endpoint} answered with something that Probe cannot read ({seen})",
        "check that this is the port of `probe serve`, and that its version is this one",
    )
