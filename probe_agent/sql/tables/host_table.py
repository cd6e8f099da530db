"""A live table about the host: taken once a query, not once a target, and its rows find their targets themselves.

Runs in the host server, on the query's thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from probe_agent.sql.engine.part import Part
from probe_agent.targets import Target

from .live_table import LiveTable

__all__ = ["HostTable"]


class HostTable(LiveTable):
    """Base of such tables."""

    @classmethod
    def take_host(cls, targets: Sequence[Target]) -> tuple[Sequence[Part], Sequence[str]]:
        """The rows now, each with the coordinates of its target (of `targets`, those asked), and notes."""
        raise NotImplementedError
