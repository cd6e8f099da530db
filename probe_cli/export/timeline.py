"""What each rank tells for a trace: steps, collectives, modules, the job's own spans and values, and its host's clock.

Steps, collectives and clocks are asked as `compare` asks for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, replace

from probe_agent.errors import ProbeError
from probe_agent.wire import QueryRequest, QueryResult
from probe_cli.client import Client
from probe_cli.cluster.compare.facts import Facts, one_clock_a_host, with_recent
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
        return self.facts.clock.offset if self.facts.clock is not None else 0.0


def told_by(
    num_steps: int, num_ranks: int, timeout_s: float, clocks_of: Container[Endpoint]
) -> Callable[[Client], Awaitable[Told]]:
    """Return the question for one rank's newest steps; what it cannot tell is a gap of its facts."""
    facts = facts_of(NEEDS, Extent(num_steps, num_ranks), timeout_s, clocks_of=clocks_of)

    async def ask(client: Client) -> Told:
        known = await facts(client)
        rows: dict[str, Sequence[Sequence[object]]] = {}
        gaps = list(known.gaps)
        for name, sql in STATEMENTS.items():
            request = QueryRequest(sql.format(num_steps=num_steps), max_rows=MAX_ROWS, timeout_s=timeout_s)
            try:
                rows[name] = (await client.send(QueryResult, "POST", "/v1/query", request)).rows
            except ProbeError as error:
                gaps.append(f"{name}: {error.message}")
        known = replace(known, gaps=tuple(gaps))
        return Told(known, rows.get("modules", ()), rows.get("spans", ()), rows.get("values", ()))

    return ask


def on_one_clock(answered: Sequence[tuple[Endpoint, Told]], ranks: dict[Endpoint, Rank]) -> list[Told]:
    """The same with who each is, and with the clock of its host."""
    named = []
    for endpoint, told in answered:
        info = ranks[endpoint].info
        who = replace(told.facts.who, rank=-1 if info.rank is None else info.rank, host=info.host, pid=info.pid)
        named.append(replace(told, facts=replace(told.facts, who=who), alive=info.alive))
    clocks = one_clock_a_host(told.facts for told in named)
    return [replace(told, facts=with_recent(facts)) for told, facts in zip(named, clocks, strict=True)]
