"""Has what endpoints of the role `control` do written down: who asked, for what, and what came of it.

Runs on the server's event loop, or on the thread of the request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from probe_agent import audit
from probe_agent.errors import ProbeError
from probe_agent.targets import Target

from .roles import Caller

__all__ = ["Outcome", "audited", "audited_lines"]

Line = dict[str, Any]  # whatever a target says in JSON
_HUNG_UP = "the client has hung up"


@dataclass
class Outcome:
    """What came of it, as far as that is known yet."""

    result: str = ""


@contextmanager
def audited(request: Request, target: Target, action: str, text: str = "") -> Iterator[Outcome]:
    """Write down that `action` begins, and in the end what came of it."""
    caller: Caller = request.state.caller
    number = audit.begin(audit.Action(caller.who, caller.role, action, text, _about(target)))
    outcome = Outcome()
    try:
        yield outcome
    except ProbeError as error:
        outcome.result = outcome.result or f"failed: {error.message}"
        raise
    except BaseException as error:
        outcome.result = outcome.result or (f"failed: {error!r}" if isinstance(error, Exception) else _HUNG_UP)
        raise
    finally:
        audit.end(number, outcome.result or "done")


async def audited_lines(
    request: Request, target: Target, action: str, text: str, lines: AsyncIterator[Line]
) -> AsyncIterator[Line]:
    """The same `lines`, of which the last says what came of it."""
    with audited(request, target, action, text) as outcome:
        try:
            async for line in lines:
                if line.get("done"):
                    outcome.result = str(line.get("state") or "done")
                yield line
        finally:
            if isinstance(lines, AsyncGenerator):
                await lines.aclose()


def _about(target: Target) -> dict[str, object]:
    said = target.identity
    return {
        "host": said.get("host"),
        "pid": target.pid,
        "rank": target.rank,
        "world_size": said["world_size"],
        "job": target.job or None,
        "folder": target.folder,
    }
