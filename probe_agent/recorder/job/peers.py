"""Addresses of the other ranks: each recorder publishes in the job's own store which host server answers for its rank.

So one known host server leads to all ranks. The addresses are kept in the target's folder, where the host server reads
them even when the store has gone with its rank, or when this process cannot answer.

Runs on threads of the recorder once the job has a process group. One exchange with the store takes 0.3 ms, at most 1 s
if the store does not answer. It uses its own connection and makes no call of the job's.
"""

from __future__ import annotations

import json
import os
from _thread import allocate_lock
from typing import Any, NamedTuple

from ..ring.folder import TARGET
from .address import listening, reachable
from .tcp_store import StoreFailed, TcpStore

__all__ = ["FILE", "Job", "Peers"]

#: File in the target's folder with the addresses of all ranks.
FILE = "peers.json"
#: Key in the job's store with one line per rank; of two lines of one rank the later counts.
KEY = "probe/ranks"
#: Time limit of one exchange with the store.
STORE_S = 1.0

Entry = dict[str, Any]  # one line, decoded: rank, host, pid, attached_at, address, note


class Job(NamedTuple):
    """The job that this process is a rank of, and the address of its store."""

    host: str
    port: int
    rank: int
    world_size: int


class Peers:
    """The address published by this rank and those read from the others. One exchange at a time."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        #: The last line published, with its job, and the addresses it was made of.
        self._said: tuple[Job, str] | None = None
        self._addresses_said: list[str] = []
        self._known: dict[int, Entry] = {}
        #: The first line in the store, which identifies the job.
        self.oldest_line = ""
        self._busy = allocate_lock()
        self._store: TcpStore | None = None
        self._stopped = False

    def is_news(self, job: Job) -> bool:
        """Return whether the published line is missing or out of date."""
        return self._said is None or self._said[0] != job or self._addresses() != self._addresses_said

    def num_known(self, job: Job) -> int:
        """Return the number of ranks of `job` with a known address."""
        return len(self._known) if self._said is not None and self._said[0] == job else 0

    def exchange(self, job: Job) -> None:
        """Publish this rank's address if it has changed, and read those of the others. Raises StoreFailed."""
        if not self._busy.acquire(timeout=2 * STORE_S):
            raise StoreFailed("another exchange with the job's store is still running")
        try:
            store = self._store = TcpStore(job.host, job.port, STORE_S)
            try:
                if not self._stopped:
                    self._talk(store, job)
            finally:
                self._store = None
                store.close()
        finally:
            self._busy.release()

    def stop(self) -> None:
        """End a running exchange and start no other."""
        self._stopped = True
        store = self._store
        if store is not None:
            store.hang_up()

    def _talk(self, store: TcpStore, job: Job) -> None:
        addresses = self._addresses()
        line = self._line(job, addresses, store.address)
        if self._said != (job, line):
            store.append(KEY, line + "\n")
        text = store.get(KEY)
        known = _entries(text, job.world_size)
        if job.rank not in known:
            raise StoreFailed("the store did not keep the published line")
        self._said, self._addresses_said, self._known = (job, line), addresses, known
        self.oldest_line = text.partition("\n")[0]
        self._write(job)

    def _addresses(self) -> list[str]:
        return listening(os.path.dirname(self._folder))

    def _line(self, job: Job, addresses: list[str], towards_store: str) -> str:
        with open(os.path.join(self._folder, TARGET)) as file:
            identity = json.load(file)
        address, note = reachable(addresses, towards_store)
        entry = {name: identity[name] for name in ("host", "attached_at")}
        entry.update(rank=job.rank, pid=identity["host_pid"], address=address, note=note)
        return json.dumps(entry)

    def _write(self, job: Job) -> None:
        path = os.path.join(self._folder, FILE)
        entries = [self._known[rank] for rank in sorted(self._known)]
        with open(path + ".new", "w") as file:
            json.dump({"world_size": job.world_size, "peers": entries}, file)
        os.chmod(path + ".new", 0o600)
        os.rename(path + ".new", path)


def _entries(text: str, world_size: int) -> dict[int, Entry]:
    """Return the valid lines by rank; any process that reaches the store can write there, so others are skipped."""
    found: dict[int, Entry] = {}
    kinds = {"rank": int, "host": str, "pid": int, "attached_at": float, "note": str}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if not isinstance(entry, dict) or any(not isinstance(entry.get(name), kind) for name, kind in kinds.items()):
            continue
        address = entry.get("address")
        if 0 <= entry["rank"] < world_size and (address is None or isinstance(address, str)):
            found[entry["rank"]] = {name: entry[name] for name in (*kinds, "address")}
    return found
