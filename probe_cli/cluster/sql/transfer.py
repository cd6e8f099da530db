"""How much a statement may move from the hosts to us, and which table is to blame when that is not enough.

Counted while bytes arrive: what is too much ends the transfer and not the machine.
"""

from __future__ import annotations

from collections import Counter

from probe_agent.errors import QueryFailed

__all__ = ["Transfer", "mebibytes"]

HINT = "name fewer columns, filter or aggregate more, or allow it: --max-transfer MIB"


class Transfer:
    """Bytes so far, by table."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.received: Counter[str] = Counter()
        self.refusal: QueryFailed | None = None

    def expect(self, table: str, num_bytes: int, num_hosts: int) -> None:
        """Refuse at once what is known to be too much."""
        if num_bytes > self.max_bytes:
            raise QueryFailed(
                f"the statement needs the rows of {table} from {num_hosts} hosts, about {mebibytes(num_bytes)}:"
                f" more than {mebibytes(self.max_bytes)}",
                HINT,
            )

    def receive(self, table: str, num_bytes: int) -> None:
        """Count what has come. Raises QueryFailed, again and again, once it is too much."""
        self.received[table] += num_bytes
        if self.refusal is None and self.received.total() > self.max_bytes:
            worst, most = self.received.most_common(1)[0]
            self.refusal = QueryFailed(
                f"more than {mebibytes(self.max_bytes)} would be moved: of {worst} alone {mebibytes(most)} have come",
                HINT,
            )
        if self.refusal is not None:
            raise self.refusal


def mebibytes(num_bytes: int) -> str:
    """`12.3 MiB`"""
    return f"{num_bytes / 2**20:.3g} MiB" if num_bytes < 1000 * 2**20 else f"{num_bytes / 2**20:,.0f} MiB"
