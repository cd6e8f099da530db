"""What one query of somebody who may only read may take of the host. Whoever starts the server decides it.

Up to what a query takes without asking for more, a question is held to the quota without a word: clients that have
not been told otherwise ask for that much. One that asks for more, and for more than is allowed, is refused.

Runs in the host server, before a query begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from probe_agent.errors import Forbidden, LimitReached
from probe_agent.wire import QueryRequest

__all__ = ["Quota"]


@dataclass(frozen=True)
class Quota:
    """The most memory and time that one query may take."""

    memory_mb: int = QueryRequest.memory_mb
    timeout_s: float = QueryRequest.timeout_s

    def held(self, question: QueryRequest) -> QueryRequest:
        """`question` with limits that are allowed. Raises Forbidden where it has asked for more."""
        if question.memory_mb > max(self.memory_mb, QueryRequest.memory_mb):
            raise _refused(
                f"{self.memory_mb:,} MB of memory, not {question.memory_mb:,}", "--memory", "PROBE_READ_MEMORY"
            )
        if question.timeout_s > max(self.timeout_s, QueryRequest.timeout_s):
            raise _refused(f"{self.timeout_s:g} s, not {question.timeout_s:g}", "--timeout", "PROBE_READ_TIMEOUT")
        return replace(
            question,
            memory_mb=min(question.memory_mb, self.memory_mb),
            timeout_s=min(question.timeout_s, self.timeout_s),
        )

    def explained(self, reached: LimitReached) -> LimitReached:
        """`reached` by a question that was held, with whose limit it was."""
        return LimitReached(
            reached.message,
            f"ask for less: with a token for reading a query may take {self.memory_mb:,} MB and {self.timeout_s:g} s"
            " here; the server's owner may allow more with PROBE_READ_MEMORY and PROBE_READ_TIMEOUT",
        )


def _refused(allowed: str, option: str, setting: str) -> Forbidden:
    return Forbidden(
        f"with a token for reading a query may take at most {allowed}",
        f"ask for no more ({option}), or use the token for everything; the server's owner may allow more: start it with"
        f" {setting}",
    )
