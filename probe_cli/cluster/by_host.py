"""Asks all ranks of a host some statements in a few questions, instead of each rank by itself.

To plan a statement takes DuckDB several times as long as to run it over the rings of one rank. So it is planned once
for the host, and runs for each rank over that rank's rows alone: the tables are narrowed to a rank in a correlated
subquery, and its answer is what the rank would have given by itself. Runs in the CLI on its event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from probe_agent.errors import ProbeError
from probe_agent.wire import QueryRequest, TargetInfo
from probe_cli.client import Client, server_of
from probe_cli.endpoint import Endpoint, LocalProcess, TcpServer, UnixServer, of_job

__all__ = ["SILENT", "TABLE", "ByHost", "list_of", "tables_of"]

MAX_ROWS = 2000
#: A table that a statement reads.
TABLE = re.compile(r"\b(FROM|JOIN)\s+((?:gpu|host|probe|process|python|torch)\.[a-z_]+)\b")
#: Statements of one question. The more they are, the more time DuckDB's optimizer takes for each of them, and each
#: question takes some, too: 54 statements about 8 ranks take 1.0 s of processor time in questions of 14, 1.4 s in
#: questions of 3, 2.4 s one by one and 2.4 s all at once.
AT_ONCE = 14
#: The same where recorders answer: one that is asked twice for its parameters does the work twice.
LIVE_AT_ONCE = 24
#: Of the time that a rank has for its own answer: what fails here is put to the ranks themselves.
PART = 0.5
#: A question that took so much of its time was not refused: nobody answered, and is not asked once more.
SILENT = 0.5
#: Rows of the host, which say nothing of a rank.
_OF_HOST = "host."
#: Named like no statement: the rows by which it is known that a rank was still there.
_STEPS = "steps of a rank"
_STEPS_SQL = "SELECT count(*) AS steps FROM python.steps"

#: The rows of a statement, as JSON has them; None for none.
Told = Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True)
class _Rows:
    """The part of a QueryResult that is read here: to check the rest takes time for each of thousands of ranks."""

    rows: tuple[list[Any], ...]
    notes: tuple[str, ...]
    elapsed_s: float = 0.0
    #: None from an older server, of which it is not known whose rows of a live table are missing.
    unanswered: dict[str, str] | None = None


class ByHost:
    """`statements`, each by its name, in one round of questions to `targets`, of which each may take `timeout_s` where
    it is asked by itself. They may name live tables if `asks_recorders`."""

    def __init__(
        self,
        statements: Mapping[str, str],
        timeout_s: float,
        targets: Mapping[Endpoint, TargetInfo] = MappingProxyType({}),
        *,
        asks_recorders: bool = False,
    ) -> None:
        self._targets = targets
        self._statements = {**statements, _STEPS: _STEPS_SQL}
        self._timeout_s = timeout_s if asks_recorders else PART * timeout_s
        self._asks_recorders = asks_recorders
        self._hosts = _ranks_of_hosts(targets)
        self._answers: dict[Endpoint, asyncio.Task[dict[int, dict[str, Told]]]] = {}
        self._notes: dict[Endpoint, dict[str, None]] = {}
        self._failed: dict[Endpoint, dict[str, str]] = {}

    def speaks_for_host(self, endpoint: Endpoint) -> bool:
        """Return whether a target is to be asked for what is the host's: one of those that are asked there."""
        host = _host_of(endpoint, self._targets)
        return host is None or host not in self._hosts or self._hosts[host][0] == self._targets[endpoint].rank

    def notes(self, endpoint: Endpoint) -> tuple[str, ...]:
        """Return what was said of the tables of the host that has told of this target."""
        host = _host_of(endpoint, self._targets)
        return () if host is None else tuple(self._notes.get(host, ()))

    def failed(self, endpoint: Endpoint) -> Mapping[str, str]:
        """Return the statements that are not to be put to this target once more, and why: its recorder is silent."""
        return self._failed.get(endpoint, {})

    async def told(self, client: Client) -> Mapping[str, Told]:
        """Return the rows of the target behind `client`, by the names of the statements that were answered for it; none
        where it is the only one of its host that is asked."""
        host = _host_of(client.endpoint, self._targets) if self._hosts else None
        if host is None or host not in self._hosts or len(self._statements) == 1:
            return {}
        if host not in self._answers:
            asked = self._ask(client.beside(host), self._hosts[host])
            self._answers[host] = asyncio.create_task(asked)
        of_host = await asyncio.shield(self._answers[host])
        target = self._targets[client.endpoint]
        told = dict(of_host.get(target.rank or 0, {}))
        num_steps = sum(row["steps"] for row in told.pop(_STEPS, None) or ())
        return told if num_steps or target.step is None else {}  # it has ended: the host told of those that live

    async def _ask(self, client: Client, ranks: Sequence[int]) -> dict[int, dict[str, Told]]:
        at_once = LIVE_AT_ONCE if self._asks_recorders else AT_ONCE
        # Those about the same tables together: a recorder is asked for them once for each part.
        named = sorted(self._statements.items(), key=lambda one: tables_of(one[1]))
        parts = [dict(named[at : at + at_once]) for at in range(0, len(named), at_once)]
        answers: dict[int, dict[str, Told]] = {rank: {} for rank in ranks}
        for told in await asyncio.gather(*(self._ask_part(client, ranks, part) for part in parts)):
            for rank, lists in told.items():
                answers[rank].update(lists)
        return answers

    async def _ask_part(
        self, client: Client, ranks: Sequence[int], statements: Mapping[str, str]
    ) -> dict[int, dict[str, Told]]:
        request = QueryRequest(for_each(ranks, statements), timeout_s=self._timeout_s, max_rows=len(ranks))
        try:
            answer = await client.send(_Rows, "POST", "/v1/query", request)
        except ProbeError:
            return {}  # each rank is asked by itself, and tells what is wrong
        told = {rank: dict(zip(statements, lists, strict=True)) for rank, *lists in answer.rows}
        self._notes.setdefault(client.endpoint, {}).update(dict.fromkeys(answer.notes))
        if not self._asks_recorders:
            return told
        if answer.unanswered is None:
            return {}
        for endpoint, target in self._targets.items():
            why = answer.unanswered.get(str(target.pid))
            if why is None or _host_of(endpoint, self._targets) != client.endpoint:
                continue
            told.pop(target.rank or 0)
            if answer.elapsed_s > SILENT * self._timeout_s:
                self._failed.setdefault(endpoint, {}).update(dict.fromkeys(statements.keys() - {_STEPS}, why))
        return told


def for_each(ranks: Sequence[int], statements: Mapping[str, str]) -> str:
    """Return one statement with a row for each rank: its number, and a list of rows for each of `statements`."""
    lists = ",\n".join(f'({_narrowed(sql)}) AS "{name}"' for name, sql in statements.items())
    asked = ", ".join(f"({rank})" for rank in ranks)
    return f"SELECT asked.rank, {lists} FROM (VALUES {asked}) AS asked(rank)"


def tables_of(sql: str) -> list[str]:
    """Return the tables that a statement reads."""
    return sorted({name for _, name in TABLE.findall(sql)})


def list_of(sql: str) -> str:
    """Return a statement of one value: the list of the rows of `sql`, NULL where it has none."""
    return f"SELECT list(r) FROM (SELECT * FROM ({sql}) LIMIT {MAX_ROWS}) r"


def _narrowed(sql: str) -> str:
    tables = [name for name in tables_of(sql) if not name.startswith(_OF_HOST)]
    own = ", ".join(f'"{name}" AS (FROM {name} AS own WHERE own.rank = asked.rank)' for name in tables)

    def named(found: re.Match[str]) -> str:
        return f'{found[1]} "{found[2]}"' if found[2] in tables else found[0]

    return (f"WITH {own} " if own else "") + list_of(TABLE.sub(named, sql))


def _ranks_of_hosts(targets: Mapping[Endpoint, TargetInfo]) -> dict[Endpoint, list[int]]:
    """Return the hosts of which several ranks of one job are asked, with these ranks."""
    hosts: dict[Endpoint, list[int]] = {}
    for endpoint, target in targets.items():
        host = _host_of(endpoint, targets)
        if host is not None:
            hosts.setdefault(host, []).append(target.rank or 0)
    return {host: ranks for host, ranks in hosts.items() if len(ranks) > 1 and len(ranks) == len(set(ranks))}


def _host_of(endpoint: Endpoint, targets: Mapping[Endpoint, TargetInfo]) -> Endpoint | None:
    """Return the living ranks of a target's job on its host; None where it has no rank among them."""
    target = targets.get(endpoint)
    if target is None or not target.alive or not target.job or target.rank is None:
        return None
    if not isinstance(endpoint, LocalProcess | TcpServer | UnixServer):
        return None
    return of_job(server_of(endpoint), target.job)
