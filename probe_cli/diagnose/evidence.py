"""Asks each target the statements of all rules at once: one snapshot of its rings, one round trip.

Runs in the CLI on its event loop. A statement that fails costs its own rule only: the others are asked again without
it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from probe_agent.errors import LimitReached, NoAnswer, QueryFailed
from probe_agent.wire import QueryRequest, QueryResult
from probe_cli.client import Client

from .rule import Row, Rule

__all__ = ["Evidence", "question_of"]

MAX_ROWS = 2000


@dataclass(frozen=True)
class Evidence:
    """The rows of one target by rule, why a statement failed, and what the server says of tables without rows."""

    rows: Mapping[str, Sequence[Row]]
    failed: Mapping[str, str]
    notes: tuple[str, ...]

    def with_(self, other: Evidence) -> Evidence:
        """Both together."""
        return Evidence({**self.rows, **other.rows}, {**self.failed, **other.failed}, self.notes + other.notes)


def question_of(
    rules: Collection[Rule], timeout_s: float, others: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Client], Awaitable[Evidence]]:
    """What to put to a target: the statements of `rules`, and `others` by their names. First what its rings tell, then
    what the recorder itself has to answer: a target that hangs may not."""
    recorded = _question({**others, **{rule.name: rule.sql for rule in rules if not rule.is_live}}, timeout_s)
    live = _question({rule.name: rule.sql for rule in rules if rule.is_live}, timeout_s)

    async def ask(client: Client) -> Evidence:
        return (await recorded(client)).with_(await live(client))

    return ask


def _question(statements: Mapping[str, str], timeout_s: float) -> Callable[[Client], Awaitable[Evidence]]:
    """`statements`, each by its name, in one round trip."""

    async def ask(client: Client) -> Evidence:
        if not statements:
            return Evidence({}, {}, ())
        try:
            return await _asked(client, statements, timeout_s)
        except (QueryFailed, LimitReached, NoAnswer) as failure:
            if len(statements) == 1:
                return Evidence({}, dict.fromkeys(statements, failure.message), ())
        rows: dict[str, Sequence[Row]] = {}
        failed: dict[str, str] = {}
        notes: dict[str, None] = {}
        for half in _halves(statements):
            told = await _question(half, timeout_s)(client)
            rows.update(told.rows)
            failed.update(told.failed)
            notes.update(dict.fromkeys(told.notes))
        return Evidence(rows, failed, tuple(notes))

    return ask


async def _asked(client: Client, statements: Mapping[str, str], timeout_s: float) -> Evidence:
    answer = await client.send(
        QueryResult, "POST", "/v1/query", QueryRequest(_together(statements), timeout_s=timeout_s, max_rows=1)
    )
    (lists,) = answer.rows
    rows: dict[str, Sequence[Row]] = {}
    for name, told in zip(statements, lists, strict=True):
        rows[name] = cast(list[Row], told) if isinstance(told, list) else []
    return Evidence(rows, {}, tuple(answer.notes))


def _together(statements: Mapping[str, str]) -> str:
    """One statement of one row: a list of rows for each statement."""
    lists = (
        f'(SELECT list(r) FROM (SELECT * FROM ({sql}) LIMIT {MAX_ROWS}) r) AS "{name}"'
        for name, sql in statements.items()
    )
    return "SELECT " + ",\n".join(lists)


def _halves(statements: Mapping[str, str]) -> list[dict[str, str]]:
    named = list(statements.items())
    middle = len(named) // 2
    return [dict(named[:middle]), dict(named[middle:])]
