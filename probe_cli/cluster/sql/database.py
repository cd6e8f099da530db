"""The door to `probe_agent.sql`: the database in our own process where the hosts' answers come together.

A second engine here would be a second copy of what a statement may do, of the limits and of how values are shown;
so the CLI uses the host server's, and this is the only file that knows it. It loads DuckDB, 0.15 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe_agent.wire import QueryRequest

if TYPE_CHECKING:
    from probe_agent.sql import MergedDatabase

__all__ = ["malformed_answer", "not_there", "open_merged"]


def open_merged(request: QueryRequest) -> MergedDatabase:
    """An empty one, with the limits of `request`."""
    from probe_agent.sql import MergedDatabase

    return MergedDatabase(request)


def malformed_answer() -> type[Exception]:
    """What it raises for an answer that does not fit."""
    from probe_agent.sql import MalformedAnswer

    return MalformedAnswer


def not_there() -> type[Exception]:
    """What it raises for a statement that DuckDB does not take."""
    from probe_agent.sql import NotThere

    return NotThere
