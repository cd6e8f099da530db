"""Ranks that have come to `init_process_group`, as far as a rank that waits there can know.

The other targets of this host tell it in their folders (`start.json`). The job's store, a TCPStore, is asked by one
rank per host, and only read: how many clients have counted themselves in it, and which ranks have published their gloo
address. To the store that is one more connection, which it does not count: torch's own clients add themselves to a
counter, and this one does not.

Runs on short-lived threads of the recorder: 0.3 ms, at most 6 s if the store does not answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..ring.folder import START, is_held
from .tcp_store import StoreFailed, TcpStore

__all__ = ["STEPS", "WAITS", "Arrivals", "StoreWatch", "Waiting", "neighbours"]

#: The store's name look-up of a new client has taken 5 s.
STORE_S = 6.0
#: Ranks whose keys are asked for, one request each.
MAX_KEYS = 256
#: Folders of other targets that are read.
MAX_FOLDERS = 128
#: Key of a rank's address while gloo connects all ranks of the default group.
_GLOO_KEY = "default_pg/0//cpu//0/{rank}"
#: State of a rank that waits in init_process_group, and of one that has left it.
WAITS, STEPS = "init_process_group", "step"


class Waiting(NamedTuple):
    """The call of init_process_group that this rank is in."""

    rank: int | None
    world_size: int | None
    #: Where the ranks meet: `node0:29500`, a file, or empty if that is not known.
    place: str
    #: Whether torchrun's agent runs the store; otherwise rank 0 does.
    has_agent_store: bool

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of the store, if it is a TCPStore."""
        host, _, port = self.place.rpartition(":")
        return (host, int(port)) if host and port.isdigit() and "/" not in self.place else None


class Arrivals(NamedTuple):
    """The ranks that have arrived, as far as they are known."""

    #: Number of ranks that have connected to the store; None if that is not known.
    num: int | None = None
    #: Ranks known to have come to init_process_group.
    ranks: frozenset[int] = frozenset()
    #: Ranks of this host that have not come yet, and what they do.
    late: Mapping[int, str] = {}
    #: Why the store was not asked, or did not answer.
    problem: str = ""


class StoreWatch:
    """A connection to the job's store for as long as a rank waits. For a server of torch's, a new connection may cost a
    look-up of the client's name; one that stays costs it once."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._store: TcpStore | None = None
        self._is_closed = False

    def ask(self) -> Arrivals:
        """Return what the store tells. Raises nothing: a store that does not answer is a problem in the answer."""
        address = self._waiting.address
        if address is None or self._is_closed:
            return Arrivals()
        try:
            store = self._store
            if store is None:
                store = self._store = TcpStore(*address, STORE_S)
            if self._is_closed:  # while it connected
                self._drop()
                return Arrivals()
            store.renew(STORE_S)
            num = store.num_clients()
            size = min(self._waiting.world_size or 0, MAX_KEYS)
            ranks = {rank for rank in range(size) if store.has(_GLOO_KEY.format(rank=rank))}
        except StoreFailed as failure:
            self._drop()
            return Arrivals(problem=str(failure))
        if self._is_closed:
            self._drop()
        if not self._waiting.has_agent_store:
            ranks.add(0)  # its process runs the store
        return Arrivals(num, frozenset(ranks))

    def close(self) -> None:
        """End a question under way on another thread, and ask no other."""
        self._is_closed = True
        store = self._store
        if store is not None:
            store.hang_up()
            self._drop()

    def _drop(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()


def neighbours(folder: str, waiting: Waiting) -> tuple[Arrivals, bool]:
    """Return what the other targets of this host tell, and whether this rank is the one of this host to ask the store:
    the lowest of those that wait. The others take over what that one has learned."""
    parent, own = os.path.split(folder)
    come: set[int] = set()
    late: dict[int, str] = {}
    first: tuple[int, dict[str, Any]] = (waiting.rank or 0, {})
    for name in sorted(os.listdir(parent))[-MAX_FOLDERS:]:
        told = _read(os.path.join(parent, name)) if name != own else None
        if told is None or told.get("place") != waiting.place or told.get("world_size") != waiting.world_size:
            continue
        rank, pid = told.get("rank"), told.get("pid")
        if not isinstance(rank, int) or not waiting.place:
            continue
        if told.get("has_group") or told.get("state") == WAITS:
            come.add(rank)
            if told.get("state") == WAITS and rank < first[0]:
                first = rank, told
        else:
            late[rank] = f"pid {pid} {told.get('does')}"
    late = {rank: does for rank, does in late.items() if rank not in come}
    num, known, problem = (first[1].get(name) for name in ("num_come", "come", "problem"))
    come.update(rank for rank in known or () if isinstance(rank, int))
    return Arrivals(num if isinstance(num, int) else None, frozenset(come), late, str(problem or "")), not first[1]


def _read(folder: str) -> dict[str, Any] | None:
    """Return the `start.json` of a living target."""
    try:
        with open(os.path.join(folder, START), "rb") as file:
            told = json.loads(file.read(1 << 20))
        return told if isinstance(told, dict) and is_held(folder) else None
    except (OSError, ValueError):
        return None  # none, or it has just been removed
