"""The job that is diagnosed, for the rules that look a second time: its targets, and more questions to them.

Runs in the CLI on its event loop. A target that does not answer here costs its evidence, and is no failure of the
diagnosis. What several rules need is asked once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

from probe_agent.wire import QueryRequest, QueryResult, TargetInfo
from probe_cli.client import Client
from probe_cli.cluster.fanout import ask
from probe_cli.endpoint import Endpoint
from probe_cli.messages import remark

__all__ = ["Job", "rank_of"]

T = TypeVar("T")


def rank_of(target: TargetInfo) -> int:
    """The rank of a target, as rules know it: without one it is -PID, which no other target of its host has."""
    return -target.pid if target.rank is None else target.rank


class Job:
    """The targets that were asked, each behind its endpoint, and since when (`began`, by default now). `known` is what
    was seen of them meanwhile, by the names that `once` is given."""

    def __init__(
        self,
        targets: Mapping[Endpoint, TargetInfo],
        timeout_s: float,
        known: Mapping[str, Any] = MappingProxyType({}),
        began: float | None = None,
    ) -> None:
        self.targets = targets
        self.timeout_s = timeout_s
        self._began = time.monotonic() if began is None else began
        self._known = known
        self._once: dict[str, asyncio.Task[Any]] = {}

    @property
    def seconds_asked(self) -> float:
        """Seconds since the first question, in which the hosts were busy with answers."""
        return time.monotonic() - self._began

    async def ask(
        self,
        question: Callable[[Client], Awaitable[T]],
        endpoints: Iterable[Endpoint] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[Endpoint, T]:
        """The answers of `endpoints` (by default of all targets), without those that did not answer in time."""
        asked = tuple(self.targets if endpoints is None else endpoints)
        answers = await ask(asked, question, timeout_s=timeout_s or self.timeout_s, inject=False, remark=remark)
        return dict(answers.answered)

    async def rows(self, sql: str, rank: int) -> list[Mapping[str, Any]]:
        """The rows of a statement, put to one rank once more; none if it does not answer."""

        async def put(client: Client) -> list[Mapping[str, Any]]:
            told = await client.send(QueryResult, "POST", "/v1/query", QueryRequest(sql, timeout_s=self.timeout_s))
            names = [column.name for column in told.columns]
            return [dict(zip(names, row, strict=True)) for row in told.rows]

        return next(iter((await self.ask(put, self.endpoints_of([rank])[:1])).values()), [])

    async def once(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `make` returns, made once for all rules that ask for `name`."""
        if name in self._known:
            return cast(T, self._known[name])
        if name not in self._once:
            self._once[name] = asyncio.create_task(make())
        return cast(T, await self._once[name])

    def endpoints_of(self, ranks: Iterable[int]) -> list[Endpoint]:
        """The endpoints of these ranks that are alive, by their `rank_of`."""
        wanted = set(ranks)
        return [at for at, target in self.targets.items() if target.alive and rank_of(target) in wanted]
