"""Limits that a query may ask for, the errors of one that reaches them, and its answer.

Runs in the host server, in the CLI where the answers of many hosts are merged, and in query workers: so without DuckDB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from probe_agent.errors import BadRequest, LimitReached
from probe_agent.wire import QueryRequest

__all__ = ["Answer", "Pieces", "check_request", "out_of_memory", "out_of_time"]

#: The bytes of an answer, which are long enough not to be joined.
Pieces = Sequence[bytes | bytearray]


@dataclass(frozen=True)
class Answer:
    """The answer of a statement, and notes on it."""

    pieces: Pieces
    truncated: bool
    notes: tuple[str, ...]
    #: The shape of each table that the statement names, as `wire.shape` makes it.
    tables: Mapping[str, str] = field(default_factory=dict)
    #: Recorded tables of the statement without a row in any target.
    missing: tuple[str, ...] = ()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


def check_request(request: QueryRequest) -> None:
    """Raise BadRequest for limits that allow nothing, and for SQL that is not Unicode."""
    if request.max_rows < 0 or not request.timeout_s > 0 or request.memory_mb < 1:
        raise BadRequest(
            "a query needs max_rows of at least 0, timeout_s above 0 and memory_mb of at least 1",
            "leave them out to get 100,000 rows, 10 s and 512 MB",
        )
    try:
        request.sql.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the statement is not valid Unicode: character {error.start + 1} is half of a surrogate pair"
            f" (U+{ord(request.sql[error.start]):04X})",
            "write the character itself, or both halves of its \\u escape",
        ) from None


def out_of_memory(memory_mb: int) -> LimitReached:
    """Return the error of a query that has used up its memory."""
    return LimitReached(
        f"the query needs more than {memory_mb} MB of memory", "select fewer rows, or allow more: --memory MEGABYTES"
    )


def out_of_time(timeout_s: float, *, gave_way: bool = False) -> LimitReached:
    """Return the error of a query that has used up its time; one that gave way had little of the CPUs."""
    share = "such queries share a sixteenth of the host's CPUs, and only what nothing else needs"
    why = f"; it asked with the read token: {share}" if gave_way else ""
    return LimitReached(
        f"the query did not end within {timeout_s:g} s and was stopped{why}",
        "select less, or allow more: --timeout SECONDS",
    )
