"""Who has which table with which columns, and one shape of each table for all of them.

Hosts may run different versions: a column that one lacks is NULL there, a table that it lacks has no rows of it there,
and both are said. Where types differ, that of most hosts holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from probe_agent.errors import NoAnswer
from probe_agent.wire import TableInfo, TableList, shape
from probe_cli.cluster.fanout import Member

__all__ = ["KnownTable", "columns_of", "known_tables", "same_tables", "understood"]

#: What a value takes on its way, roughly; the rest are numbers of 8 bytes.
_TEXT_BYTES, _NUMBER_BYTES = 20, 8


@dataclass
class KnownTable:
    """One table: its columns with their types, and what each member has of it."""

    name: str
    columns: dict[str, str] = field(default_factory=dict)
    had_by: dict[Member, dict[str, str]] = field(default_factory=dict)
    rows: dict[Member, int] = field(default_factory=dict)

    def fits(self, member: Member, columns: Iterable[str]) -> bool:
        """Whether the table of `member` can be asked for `columns` as it is."""
        return all(self.had_by[member].get(column) == self.columns[column] for column in columns)

    def missing(self, member: Member, columns: Iterable[str]) -> tuple[str, ...]:
        """Which of `columns` it lacks."""
        return tuple(column for column in columns if column not in self.had_by[member])

    def shaped(self, member: Member, columns: Iterable[str]) -> str:
        """The SQL that gives the table of `member` the shape that all have."""
        had = self.had_by[member]
        shown = [
            f"CAST({_quoted(name) if name in had else 'NULL'} AS {kind}) AS {_quoted(name)}"
            for name, kind in self.columns.items()
            if name in set(columns)
        ]
        schema, _, table = self.name.rpartition(".")
        return f"SELECT {', '.join(shown)} FROM {_quoted(schema)}.{_quoted(table)}"

    @property
    def shape(self) -> str:
        """Its columns in one word, as host servers say it with their answers."""
        return shape(self.columns.items())

    def estimated_bytes(self, columns: Iterable[str]) -> int:
        """About how much all rows are, of these columns. Live tables are not counted."""
        width = sum(_TEXT_BYTES if self.columns[column] == "VARCHAR" else _NUMBER_BYTES for column in columns)
        return sum(self.rows.values()) * width


def understood(member: Member, listed: TableList, is_type: Callable[[str], bool]) -> TableList:
    """`listed` if a host server of ours can have said it. Raises NoAnswer."""
    for table in listed.tables:
        types = {column.name: column.type for column in table.columns}
        texts = (table.name, *types, *types.values())
        if not all(isinstance(text, str) for text in texts) or not isinstance(table.rows, int | None):
            raise _not_ours(member, f"its table {table.name!r:.40} is described in a way we do not know")
        if wrong := [kind for kind in types.values() if not is_type(kind)]:
            raise _not_ours(member, f"{wrong[0]!r:.40} is no type of a column")
        if any(character in table.name for character in '"\0') or table.name.count(".") < 1:
            raise _not_ours(member, f"{table.name!r:.40} is no name of a table")
        if len({name.lower() for name in types}) < len(types) or not types:
            raise _not_ours(member, f"two columns of {table.name} have one name, or it has none")
    return listed


def _not_ours(member: Member, seen: str) -> NoAnswer:
    return NoAnswer(
        f"{member.endpoint} answered with something that is not ours ({seen})",
        "is that the port of `probe serve`, and is its version ours?",
    )


def known_tables(answers: Iterable[tuple[Member, TableList]]) -> dict[str, KnownTable]:
    """The tables of all members by their names in lower case."""
    known: dict[str, KnownTable] = {}
    described: dict[str, list[TableInfo]] = {}
    for member, listed in answers:
        for table in listed.tables:
            name = table.name.lower()
            entry = known.setdefault(name, KnownTable(name))
            entry.had_by[member] = {column.name: column.type for column in table.columns}
            entry.rows[member] = max(0, table.rows or 0)
            described.setdefault(name, []).append(table)
    for name, entry in known.items():
        entry.columns = _common(described[name])
    return dict(sorted(known.items()))


def same_tables(listed: TableList, members: Sequence[Member]) -> dict[str, KnownTable]:
    """The tables of all `members`, if each has what is listed."""
    known = known_tables([(members[0], listed)])
    for table in known.values():
        table.had_by = dict.fromkeys(members, table.columns)
        table.rows = dict.fromkeys(members, table.rows[members[0]])
    return known


def _common(described: list[TableInfo]) -> dict[str, str]:
    """All columns of all versions, in the order of the one that has most."""
    types: dict[str, Counter[str]] = {}
    for table in sorted(described, key=lambda table: -len(table.columns)):
        for column in table.columns:
            types.setdefault(column.name, Counter())[column.type] += 1
    columns: dict[str, str] = {}
    for name, counted in types.items():
        if name.lower() not in {other.lower() for other in columns}:
            columns[name] = counted.most_common(1)[0][0]
    return columns


def columns_of(tables: Mapping[str, KnownTable]) -> dict[str, dict[str, str]]:
    """Their columns alone."""
    return {name: table.columns for name, table in tables.items()}


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
