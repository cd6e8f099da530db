"""What each rank tells for a trace: steps, collectives, modules, the job's own spans and values, and its host's clock.

Steps, collectives and clocks are asked as `compare` asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from probe_agent.errors import ProbeError
from probe_agent.wire import QueryRequest, QueryResult
from probe_cli.client import Client
from probe_cli.cluster.compare.facts import Clock, Facts, with_recent
from probe_cli.cluster.compare.gather import question as facts_of
from probe_cli.cluster.compare.questions import Extent
from probe_cli.cluster.ranks.listing import Rank
from probe_cli.endpoint import Endpoint

__all__ = ["Told", "on_one_clock", "told_by"]

NEEDS = ("steps", "calls", "recent", "groups", "pauses")
#: Newest rows of each of these, of one rank.
MAX_ROWS = 100_000
MODULES = """
SELECT step, epoch(ts), duration, module, stage, phase, self_duration, device_duration, allocated_delta, recomputed,
    compiled
FROM python.torch_trace WHERE step > (SELECT max(step) - {num_steps} FROM python.steps) ORDER BY ts DESC"""
SPANS = """
SELECT step, epoch(ts), duration, name, path, tid, error
FROM python.spans WHERE step > (SELECT max(step) - {num_steps} FROM python.steps) ORDER BY ts DESC"""
VALUES = """
SELECT epoch(ts), loss, grad_norm, rss, allocated, reserved
FROM python.steps WHERE step > (SELECT max(step) - {num_steps} FROM python.steps) ORDER BY ts"""
#: By the field of `Told`.
STATEMENTS = {"modules": MODULES, "spans": SPANS, "values": VALUES}
#: Names of the columns of VALUES behind the time, each a counter.
COUNTERS = ("loss", "gradient norm", "resident memory (MiB)", "allocated (MiB)", "reserved (MiB)")


@dataclass(frozen=True)
class Told:
    """The rows of one rank. Times are in seconds since 1970 by the clock of its host."""

    facts: Facts
    #: Rows of MODULES, SPANS and VALUES.
    modules: Sequence[Sequence[object]] = ()
    spans: Sequence[Sequence[object]] = ()
    values: Sequence[Sequence[object]] = ()
    alive: bool = False

    @property
    def offset(self) -> float:
        """To be taken off its times to be on the clock that all ranks share."""
        return self.facts.offset


def told_by(num_steps: int, num_ranks: int, timeout_s: float) -> Callable[[Client], Awaitable[Told]]:
    """Return the question for one rank's newest steps; what it cannot tell is a gap of its facts."""
    facts = facts_of(NEEDS, Extent(num_steps, num_ranks), timeout_s)

    async def ask(client: Client) -> Told:
        rows: dict[str, Sequence[Sequence[object]]] = {}
        gaps: list[str] = []

        async def ask_for(name: str, sql: str) -> None:
            request = QueryRequest(sql.format(num_steps=num_steps), max_rows=MAX_ROWS, timeout_s=timeout_s)
            try:
                rows[name] = (await client.send(QueryResult, "POST", "/v1/query", request)).rows
            except ProbeError as error:
                gaps.append(f"{name}: {error.message}")

        others = asyncio.gather(*(ask_for(name, sql) for name, sql in STATEMENTS.items()))
        known, _ = await asyncio.gather(facts(client), others)
        known = replace(known, gaps=(*known.gaps, *gaps))
        return Told(known, rows.get("modules", ()), rows.get("spans", ()), rows.get("values", ()))

    return ask


def on_one_clock(
    answered: Sequence[tuple[Endpoint, Told]], ranks: Mapping[Endpoint, Rank], clocks: Mapping[str, Clock]
) -> list[Told]:
    """The same with who each is, and with the clock of its host."""
    named = []
    for endpoint, told in answered:
        info = ranks[endpoint].info
        who = replace(told.facts.who, rank=-1 if info.rank is None else info.rank, host=info.host, pid=info.pid)
        facts = with_recent(replace(told.facts, who=who, clock=clocks.get(info.host)))
        named.append(replace(told, facts=facts, alive=info.alive))
    return named
