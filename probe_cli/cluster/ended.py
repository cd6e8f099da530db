"""Targets that have ended: who they are, and how to ask for what they left.

Pure functions on what host servers have told of their targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probe_agent.errors import NoAnswer
from probe_agent.wire import TargetInfo
from probe_cli.endpoint import Endpoint, LocalProcess, TcpServer, UnixServer

__all__ = ["none_lives", "rank_text"]

#: So many are named.
MAX_NAMED = 16


def rank_text(target: TargetInfo) -> str:
    """Its rank as messages say it."""
    return "rank not known" if target.rank is None else f"rank {target.rank}"


def none_lives(targets: Sequence[TargetInfo], at: Endpoint | None = None) -> NoAnswer:
    """The error for a question to all living targets where none lives; `at` is the endpoint that led to them."""
    names = ", ".join(f"pid {target.pid} ({rank_text(target)})" for target in targets[:MAX_NAMED])
    names += ", …" if len(targets) > MAX_NAMED else ""
    where = "on this host" if at is None or isinstance(at, LocalProcess) else f"at {at}"
    return NoAnswer(
        f"no living target {where}: {len(targets)} ended: {names}",
        f"name one for what it left: probe -t {_named(at, targets[-1])} query …; several count as one database",
    )


def _named(at: Endpoint | None, target: TargetInfo) -> str:
    if isinstance(at, TcpServer | UnixServer):
        return str(replace(at, rank=None, pid=target.pid))
    return str(target.pid)
