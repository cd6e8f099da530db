"""Asks each target the statements of all rules at once: one snapshot of its rings, one round trip.

Runs in the CLI on its event loop. A statement that fails costs its own rule only: the others are asked again without
it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from probe_agent.errors import LimitReached, NoAnswer, QueryFailed
from probe_agent.wire import QueryRequest, QueryResult, TargetInfo
from probe_cli.client import Client
from probe_cli.cluster.by_host import SILENT, ByHost, tables_of
from probe_cli.endpoint import Endpoint

from . import gpu_load
from .rule import Question, Row, Rule
from .statements import rows_in, together

__all__ = ["Evidence", "question_of"]

#: How much longer a host may take for the rings, which take processor time alone: the machine may be busy.
RINGS = 4
#: The same where recorders answer: of this, a target may take six tenths itself.
LIVE = 2
_ANY_ANSWER = "SELECT count(*) FROM process.env"


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
    rules: Collection[Question],
    timeout_s: float,
    others: Mapping[str, str] = MappingProxyType({}),
    targets: Mapping[Endpoint, TargetInfo] = MappingProxyType({}),
) -> Callable[[Client], Awaitable[Evidence]]:
    """What to put to a target: the statements of `rules`, and `others` by their names. What its rings tell and what the
    recorder itself has to answer are two questions, put at the same time: a target that hangs may not answer that.
    Ranks of one host that are among `targets`, all that are asked in this round, tell what is in their rings together,
    which `others` have to be about then.
    """
    of_ranks = {**others, **{rule.name: rule.sql for rule in rules if not rule.is_live and not rule.per_host}}
    of_hosts = {rule.name: rule.sql for rule in rules if not rule.is_live and rule.per_host}
    by_host = ByHost(of_ranks, RINGS * timeout_s, targets)
    of_live = {rule.name: rule.sql for rule in rules if rule.is_live}
    if any(isinstance(rule, Rule) and rule.on_host for rule in rules):
        of_live[gpu_load.NAME] = gpu_load.SQL
    with_gpus = {name: sql for name, sql in of_live.items() if any(one.startswith("gpu.") for one in tables_of(sql))}
    without_gpus = {name: sql for name, sql in of_live.items() if name not in with_gpus}
    live_by_host = ByHost(without_gpus, LIVE * timeout_s, targets, asks_recorders=True)

    async def recorded(client: Client) -> Evidence:
        rows = rows_in(await by_host.told(client))
        left = {name: sql for name, sql in of_ranks.items() if name not in rows}
        if not targets or by_host.speaks_for_host(client.endpoint):
            left.update(of_hosts)
        notes = by_host.notes(client.endpoint) if rows else ()
        return Evidence(rows, {}, notes).with_(await _question(left, RINGS * timeout_s)(client))

    async def live(client: Client) -> Evidence:
        rows = rows_in(await live_by_host.told(client))
        failed = live_by_host.failed(client.endpoint) if targets else {}
        left = {name: sql for name, sql in without_gpus.items() if name not in rows and name not in failed}
        notes = live_by_host.notes(client.endpoint) if rows else ()
        return Evidence(rows, failed, notes).with_(await _question(left, LIVE * timeout_s, asks_recorder=True)(client))

    # Of the GPUs of a host a rank tells its own, and those of nobody.
    beside_gpus = _question(with_gpus, LIVE * timeout_s, asks_recorder=True)

    async def ask(client: Client) -> Evidence:
        told, told_live, told_gpus = await asyncio.gather(recorded(client), live(client), beside_gpus(client))
        return told.with_(told_live).with_(told_gpus)

    return ask


def _question(
    statements: Mapping[str, str], timeout_s: float, *, asks_recorder: bool = False
) -> Callable[[Client], Awaitable[Evidence]]:
    """`statements`, each by its name, in one round trip."""

    async def ask(client: Client) -> Evidence:
        if not statements:
            return Evidence({}, {}, ())
        began = time.monotonic()
        try:
            return await _asked(client, statements, timeout_s)
        except (QueryFailed, LimitReached, NoAnswer) as failure:
            # One that kept silent would do so for each half, and the rows of its rings would come too late.
            is_silent = time.monotonic() - began > SILENT * timeout_s
            if len(statements) == 1 or is_silent or (asks_recorder and not await _answers(client, timeout_s)):
                more = "; allow more: --timeout SECONDS" if is_silent and isinstance(failure, LimitReached) else ""
                return Evidence({}, dict.fromkeys(statements, f"{failure.message}{more}"), ())
        rows: dict[str, Sequence[Row]] = {}
        failed: dict[str, str] = {}
        notes: dict[str, None] = {}
        for half in _halves(statements):
            told = await _question(half, timeout_s, asks_recorder=asks_recorder)(client)
            rows.update(told.rows)
            failed.update(told.failed)
            notes.update(dict.fromkeys(told.notes))
        return Evidence(rows, failed, tuple(notes))

    return ask


async def _answers(client: Client, timeout_s: float) -> bool:
    """Return whether the recorder answers at all: a target that has ended or hangs is not asked rule by rule."""
    try:
        await client.send(QueryResult, "POST", "/v1/query", QueryRequest(_ANY_ANSWER, timeout_s=timeout_s, max_rows=1))
    except (QueryFailed, LimitReached, NoAnswer):
        return False
    return True


async def _asked(client: Client, statements: Mapping[str, str], timeout_s: float) -> Evidence:
    answer = await client.send(
        QueryResult, "POST", "/v1/query", QueryRequest(together(statements), timeout_s=timeout_s, max_rows=1)
    )
    (lists,) = answer.rows
    return Evidence(rows_in(dict(zip(statements, lists, strict=True))), {}, tuple(answer.notes))


def _halves(statements: Mapping[str, str]) -> list[dict[str, str]]:
    named = list(statements.items())
    middle = len(named) // 2
    return [dict(named[:middle]), dict(named[middle:])]
