"""The other side of a send or receive that a rank is in, from the arguments of torch's function in its stack.

gloo leaves no trace of sends and receives, and a recorder that came later has not seen them called. Their functions are
still on the stack, with the rank that they were given. Runs in the CLI; a recorder tells local variables.
"""

from __future__ import annotations

from typing import NamedTuple

from probe_agent.errors import ProbeError
from probe_agent.wire import Backtrace, Frame
from probe_cli.client import Client
from probe_cli.cluster.stacks import ask_stacks

from .doing import trains

__all__ = ["Peer", "ask_peer"]

_FILE = "torch/distributed/distributed_c10d.py"
#: Of each function, what it calls the other side: its rank in the job, and in the group.
_ARGUMENTS = {"send": ("dst", "group_dst"), "recv": ("src", "group_src")}


class Peer(NamedTuple):
    """A send or receive, and whom it is with: a rank in the job, or else in the group."""

    op: str
    rank: int | None
    group_rank: int | None


async def ask_peer(client: Client, stacks: Backtrace | None) -> Peer | None:
    """Return whom the send or receive is with that the rank with these stacks is in; None if it is in none, takes from
    anybody, or does not tell."""
    if stacks is None or _frame(stacks) is None:
        return None
    try:
        told = await ask_stacks(client, with_locals=True)
    except ProbeError:
        return None  # it may be refused
    frame = _frame(told)
    return None if frame is None else _peer(frame)


def _frame(stacks: Backtrace) -> Frame | None:
    """Return the outermost such function that the job's thread is in."""
    thread = trains(stacks)
    found = [frame for frame in (thread.frames if thread is not None else ()) if frame.file.endswith(_FILE)]
    return next((frame for frame in reversed(found) if frame.func in _ARGUMENTS), None)


def _peer(frame: Frame) -> Peer | None:
    held = frame.locals or {}
    rank, group_rank = (_int(held.get(name)) for name in _ARGUMENTS[frame.func])
    return None if rank is None and group_rank is None else Peer(frame.func, rank, group_rank)


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
