"""Query engine of a host server: each statement runs in a query worker, and its live rows are taken here.

Runs in the host server, on the event loop. DuckDB is loaded in the workers only.
"""

from __future__ import annotations

from collections.abc import Sequence

from probe_agent.errors import ProbeError
from probe_agent.targets import Target
from probe_agent.wire import QueryRequest

from .engine.open_rings import OpenRings
from .engine.request import check_request
from .tables.live_rows import take_live
from .workers.frames import Job
from .workers.pool import Asker, Reply, Workers

__all__ = ["QueryEngine"]

#: Share of a statement's time that targets may take to answer, so that the rows of those that do are not lost.
_LIVE_SHARE = 0.6


class QueryEngine:
    """Answers queries of one server."""

    def __init__(self) -> None:
        self._workers = Workers()
        self.rings = OpenRings()

    def start(self) -> None:
        """Start the workers, so that the first statement does not wait for them."""
        self._workers.start()

    def close(self) -> None:
        """End all queries, and release what is kept between them."""
        self._workers.close()
        self.rings.forget_removed()

    async def answer(
        self,
        targets: Sequence[Target],
        request: QueryRequest,
        *,
        arrow: bool = False,
        remarks: Sequence[str] = (),
        asker: Asker = "owner",
    ) -> Reply:
        """Return a `wire.QueryResult` as JSON, or an Arrow IPC stream. Raises QueryFailed, BadRequest or NoAnswer."""
        check_request(request)

        async def take(names: Sequence[str]) -> object:
            try:
                return await take_live(names, targets, request.timeout_s * _LIVE_SHARE)
            except ProbeError as error:
                return error

        return await self._workers.run(Job(targets, request, arrow, remarks), asker, take)
