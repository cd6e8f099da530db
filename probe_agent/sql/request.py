"""What a question must be before it is given to anybody.

Runs in the host server, and in the CLI where the answers of many hosts are put together; loads nothing.
"""

from __future__ import annotations

from probe_agent.errors import BadRequest
from probe_agent.wire import QueryRequest

__all__ = ["check_request"]


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
