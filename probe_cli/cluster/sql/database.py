"""The door to `probe_agent.sql`: the database, in a worker of ours, where the hosts' answers come together.

A second engine here would be a second copy of what a statement may do, of the limits and of how values are shown;
so the CLI uses the host server's, and this is the only file that knows it. The worker is ready after 0.3 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe_agent.wire import QueryRequest

if TYPE_CHECKING:
    from probe_agent.sql.merging import MergedDatabase

__all__ = ["expect_merging", "malformed_answer", "not_there", "open_merged"]


def expect_merging() -> None:
    """Have the worker made while there is something else to do."""
    from probe_agent.sql.merging import start_merging

    start_merging()


def open_merged(request: QueryRequest) -> MergedDatabase:
    """An empty one, with the limits of `request`."""
    from probe_agent.sql.merging import MergedDatabase

    return MergedDatabase(request)


def malformed_answer() -> type[Exception]:
    """What it raises for an answer that does not fit."""
    from probe_agent.sql.merging import MalformedAnswer

    return MalformedAnswer


def not_there() -> type[Exception]:
    """What it raises for a statement that DuckDB does not take."""
    from probe_agent.sql.merging import NotThere

    return NotThere
