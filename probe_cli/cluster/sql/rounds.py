"""Rounds of questions: every host answers all parts of a round, or has no part in the whole answer.

Runs in the CLI on its event loop. What hosts send is counted while it arrives: too much ends the transfer, not the
machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from probe_agent.errors import Forbidden, NoAnswer, QueryFailed
from probe_agent.sql.merging import MergedDatabase
from probe_agent.units import mib
from probe_agent.wire import QueryRequest, shape
from probe_cli.cluster.fanout import Conversation, Member
from probe_cli.text import mebibytes

from .schema_discovery import KnownTable, discover, unreadable
from .split import Part

if TYPE_CHECKING:
    from probe_cli.client import Data

__all__ = ["GuessedWrong", "Rounds"]

_ARROW = "application/vnd.apache.arrow.stream"
#: Partial answers are not cut: --max-transfer limits them, and --max-rows is for the whole.
_ALL_ROWS = 2**31
_LESS = "name fewer columns, filter or aggregate more, or allow it: --max-transfer MIB"


class GuessedWrong(Exception):
    """A host may have other tables than the one that told for all."""


@dataclass
class Rounds:
    """The questions to hosts for one statement, and what came of them."""

    conversation: Conversation
    database: MergedDatabase
    request: QueryRequest
    max_bytes: int
    host_timeout_s: float
    tables: dict[str, KnownTable] = field(default_factory=dict)
    is_guessed: bool = False
    contributed: set[Member] = field(default_factory=set)
    #: Of each part: the table, how many hosts sent how many rows and bytes, and what they were asked.
    steps: list[tuple[str, int, int, int, str]] = field(default_factory=list)
    #: The limit that was exceeded; no failure of any host.
    refusal: QueryFailed | None = None
    #: Of each table: the hosts that have answered and have recorded no row in it.
    _empty_at: dict[str, set[Member]] = field(default_factory=dict)
    _received: Counter[str] = field(default_factory=Counter)
    _notes: dict[str, dict[str, None]] = field(default_factory=dict)

    async def discover(self, names: Collection[str], *, may_guess: bool) -> None:
        """Find out about the tables `names` (all, without), and create them, empty."""
        self.tables, self.is_guessed = await discover(self.conversation, self.database, names, may_guess=may_guess)
        for table in self.tables.values():
            self.database.create(table.name, table.columns)

    async def ask(self, parts: Sequence[Part]) -> None:
        """Have all hosts answer `parts`, and fill the tables they go into. Raises GuessedWrong."""
        await self._expect([part for part in parts if part.into == part.table and part.select["where_clause"] is None])
        texts: dict[tuple[str, str], str] = {}
        answers = await self.conversation.ask(partial(self._answer, parts, texts)) if parts else []
        if self.refusal is not None:
            raise self.refusal
        failed = [member for member in self.conversation.members if isinstance(member.error, QueryFailed | Forbidden)]
        streams = [(member, part, data) for member, received in answers for part, data in received]
        shapes = {name: shape(table.columns.items()) for name, table in self.tables.items()}
        others = any(data.tables.get(part.table) != shapes[part.table] for _, part, data in streams)
        if self.is_guessed and (others or any(isinstance(member.error, QueryFailed) for member in failed)):
            raise GuessedWrong
        for member in failed:
            assert member.error is not None
            if not answers:  # an error that all have in common is the statement's
                raise member.error
            member.error = NoAnswer(f"{member.endpoint}: {member.error.message}", member.error.hint)
        num_rows, malformed = self.database.fill([(part.into, part.columns, data.body) for _, part, data in streams])
        for at, why in malformed.items():
            streams[at][0].error = unreadable(streams[at][0], why)
        self.contributed.update(member for member, _ in answers)
        for member, _, data in streams:
            self._note(member, *data.notes)
            for name in data.missing:
                self._empty_at.setdefault(name, set()).add(member)
        for part in parts:
            sizes = [len(data.body) for _, each, data in streams if each is part]
            asked = self.database.text_of(part.select)
            self.steps.append((part.table, len(sizes), num_rows.get(part.into, 0), sum(sizes), asked))

    async def _answer(
        self, parts: Sequence[Part], texts: dict[tuple[str, str], str], member: Member
    ) -> list[tuple[Part, Data]]:
        received = []
        timeout_s = min(self.host_timeout_s, self.request.timeout_s)
        for part in parts:
            table = self.tables[part.table]
            if member not in table.had_by:
                self._note(member, f"there is no table {table.name}: no rows of it")
                continue
            if missing := table.missing(member, part.uses):
                self._note(member, f"{table.name} has no {', '.join(missing)}: NULL")
            source = table.source(member, part.uses)
            if (part.into, source) not in texts:
                texts[part.into, source] = self._text(part, source)
            request = QueryRequest(texts[part.into, source], _ALL_ROWS, timeout_s, self.request.memory_mb)
            count = partial(self._count, table.name)
            received.append((part, await member.client.data("/v1/query", request, _ARROW, count)))
        return received

    def _text(self, part: Part, source: str) -> str:
        """Return the SQL of `part`, over `source` where a host's table has not the common shape."""
        select = part.select
        if source:
            select = {**select, "from_table": self.database.parsed(f"SELECT * FROM ({source}) AS shaped")["from_table"]}
        return self.database.text_of(select)

    async def _expect(self, whole: Sequence[Part]) -> None:
        """Refuse to fetch whole tables that are known to be too large. Raises QueryFailed and GuessedWrong."""
        if whole and self.is_guessed:  # only the hosts themselves know how many rows they have
            told, _ = await discover(self.conversation, self.database, list(self.tables), may_guess=False)
            if any(name not in told or told[name].columns != self.tables[name].columns for name in self.tables):
                raise GuessedWrong
            self.tables, self.is_guessed = told, False
        for part in whole:
            table = self.tables[part.table]
            num_bytes = table.estimated_bytes([name for name, _ in part.columns])
            if num_bytes > self.max_bytes:
                raise QueryFailed(
                    f"the statement needs the rows of {table.name} from {len(table.had_by)} hosts,"
                    f" about {mebibytes(mib(num_bytes))}: more than {mebibytes(mib(self.max_bytes))}",
                    _LESS,
                )

    def _count(self, table: str, num_bytes: int) -> None:
        """Count what has arrived. Raises QueryFailed, every time, once it is too much."""
        self._received[table] += num_bytes
        if self.refusal is None and self._received.total() > self.max_bytes:
            worst, most = self._received.most_common(1)[0]
            limit, most_shown = mebibytes(mib(self.max_bytes)), mebibytes(mib(most))
            self.refusal = QueryFailed(f"the hosts send more than {limit}, of {worst} alone {most_shown}", _LESS)
        if self.refusal is not None:
            raise self.refusal

    def _note(self, member: Member, *notes: str) -> None:
        for note in notes:
            self._notes.setdefault(note, {})[str(member.endpoint)] = None

    def missing(self) -> tuple[str, ...]:
        """Return the tables in which no host has a row."""
        return tuple(sorted(name for name, empty_at in self._empty_at.items() if empty_at == self.contributed))

    def notes(self) -> list[str]:
        """Return each note once, with the hosts that it is about."""
        folded = []
        for note, about in self._notes.items():
            who = ", ".join(list(about)[:4]) + (f" and {len(about) - 4} more" if len(about) > 4 else "")
            folded.append(f"{'all' if len(about) == len(self.conversation.members) else who}: {note}")
        return folded
