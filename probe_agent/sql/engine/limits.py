"""What a question may ask for, and what is said to one that came to its limits.

Runs in the host server, in the CLI where the answers of many hosts are put together, and in query workers.
"""

from __future__ import annotations

from probe_agent.errors import BadRequest, LimitReached
from probe_agent.wire import QueryRequest

__all__ = ["check_request", "out_of_memory", "out_of_time"]


def check_request(request: QueryRequest) -> None:
    """Raise BadRequest for limits that allow nothing, and for what is not text."""
    if request.max_rows < 0 or not request.timeout_s > 0 or request.memory_mb < 1:
        raise BadRequest(
            "a query needs max_rows of at least 0, timeout_s above 0 and memory_mb of at least 1",
            "leave them out for 100,000 rows, 10 s and 512 MB",
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
    """What to tell of a query that came to the end of its memory."""
    return LimitReached(f"the query needs more than {memory_mb} MB of memory", "allow it more: --memory MEGABYTES")


def out_of_time(timeout_s: float) -> LimitReached:
    """What to tell of a query that came to the end of its time."""
    return LimitReached(
        f"the query did not end within {timeout_s:g} s and was stopped", "allow it more: --timeout SECONDS"
    )
