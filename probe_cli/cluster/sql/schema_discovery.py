"""Which tables the members of a conversation have: as all of them tell, or as one tells for all.

Hosts of one version have the same tables, so of many only some are asked, and the first answer does. With each answer
to a query a host says which tables it has; whoever says something else, or fails, is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from probe_agent.errors import QueryFailed
from probe_agent.wire import TableList
from probe_cli.cluster.fanout import Conversation, Member

from .tables import KnownTable, known_tables, same_tables, understood

if TYPE_CHECKING:
    from probe_agent.sql.merging import MergedDatabase

__all__ = ["Learned", "Otherwise"]

#: So many hosts at most are asked where all are thought to have the same.
_CANDIDATES = 3


class Otherwise(Exception):
    """Some host has other tables than was thought."""


class Learned:
    """The tables by name, once `learn` has been called."""

    def __init__(self, conversation: Conversation, database: MergedDatabase) -> None:
        self._conversation = conversation
        self._database = database
        self.tables: dict[str, KnownTable] = {}
        #: Those who have told themselves, where the others are thought to have the same.
        self._told: set[Member] = set()

    @property
    def is_guessed(self) -> bool:
        """Whether not all members have told."""
        return bool(self._told)

    async def learn(self, names: Collection[str], *, may_guess: bool) -> None:
        """Who has which of the tables `names`, of all tables without."""
        present = self._conversation.present
        question = partial(self._tables_of, names=names)
        if may_guess and names and len(present) > _CANDIDATES:
            first = await self._conversation.first(question, present[:_CANDIDATES])
            if first is not None and set(names) <= {table.name.lower() for table in first[1].tables}:
                self._told = {first[0]}
                self.tables = same_tables(first[1], self._conversation.present)
                return
        self.tables = known_tables(await self._conversation.ask(question))

    async def learn_of_others(self) -> None:
        """Tables that the statement has not named, of one member: for hints."""
        for name, table in known_tables(
            await self._conversation.ask(self._tables_of, self._conversation.present[:1])
        ).items():
            self.tables.setdefault(name, table)

    async def make_sure(self, doubtful: Sequence[Member]) -> None:
        """Have the members whose query has failed, and those who are `doubtful`, tell. Raises Otherwise."""
        failed = {m: m.error for m in self._conversation.members if isinstance(m.error, QueryFailed)}
        for member in failed:
            member.error = None
        await self.make_sure_of([*failed, *doubtful])
        for member, error in failed.items():
            member.error = member.error or error

    async def make_sure_of(self, members: Sequence[Member]) -> None:
        """Have these tell, as far as they have not. Raises Otherwise."""
        names = list(self.tables)
        asked = [member for member in members if member not in self._told]
        for member, listed in await self._conversation.ask(partial(self._tables_of, names=names), asked):
            told = known_tables([(member, listed)])
            if any(name not in told or told[name].columns != self.tables[name].columns for name in names):
                raise Otherwise
            self._told.add(member)
            for name in names:
                self.tables[name].rows[member] = told[name].rows[member]

    async def _tables_of(self, member: Member, names: Collection[str] = ()) -> TableList:
        listed = await member.client.get(TableList, "/v1/tables", names=",".join(names))
        return understood(member, listed, self._database.is_type)
