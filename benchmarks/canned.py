"""A query engine of simulated hosts that runs a statement to one rank for a few ranks, and one to each rank of a host
for one host, and answers for the others with what these have answered. Its answers are of use to a measured command
only.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack

from probe_agent.errors import ProbeError
from probe_agent.sql.query_engine import QueryEngine
from probe_agent.sql.workers.pool import Asker, Reply
from probe_agent.targets import Target
from probe_agent.wire import QueryRequest

__all__ = ["CannedEngine"]

#: Ranks that are told apart.
NUM_DIFFERENT = 8
#: The end of a statement to each of some ranks.
_EACH = re.compile(r"\(VALUES ([\d(), ]+)\) AS asked\(rank\)$")


class CannedEngine(QueryEngine):
    """Runs each statement to a single target once for each of `NUM_DIFFERENT` ranks, and one to each rank of a host for
    the first host."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[object, asyncio.Task[tuple[Reply, bytes]]] = {}

    async def answer(
        self,
        targets: Sequence[Target],
        request: QueryRequest,
        *,
        arrow: bool = False,
        remarks: Sequence[str] = (),
        asker: Asker = "owner",
    ) -> Reply:
        each = _EACH.search(request.sql)
        if len(targets) != 1 and each is None:
            return await super().answer(targets, request, arrow=arrow, remarks=remarks, asker=asker)

        async def run() -> tuple[Reply, bytes]:
            reply = await super(CannedEngine, self).answer(targets, request, arrow=arrow, remarks=remarks, asker=asker)
            return reply, await reply.body()

        ranks = [int(rank) for rank in re.findall(r"\d+", each[1])] if each else [targets[0].rank or 0]
        key = (request.sql[: each.start() if each else None], ranks[0] % NUM_DIFFERENT, len(ranks), arrow)
        if key not in self._known:
            self._known[key] = asyncio.ensure_future(run())
        try:
            told, body = await asyncio.shield(self._known[key])
        except ProbeError as error:
            raise type(error)(error.message, error.hint) from None
        if each is not None:
            answer = json.loads(body)
            for row, rank in zip(sorted(answer["rows"], key=lambda row: int(row[0])), ranks, strict=True):
                row[0] = rank
            body = json.dumps(answer).encode()
        return Reply(len(body), told.truncated, told.notes, told.tables, told.missing, body, None, AsyncExitStack())
