"""The command line's end of the database where the answers of several host servers come together (merged.py).

The database lies in a query worker: DuckDB is not loaded here, an answer that crashes whoever reads it ends a worker,
and a call costs 0.1 ms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from probe_agent import errors
from probe_agent.errors import ProbeError, QueryFailed
from probe_agent.wire import QueryRequest

from .engine.request import Answer, check_request, out_of_time
from .workers.frames import HEAD, MAX_HEAD_BYTES, exactly, packed
from .workers.process import ZygoteProcess
from .workers.zygote import KILL

__all__ = ["MergedDatabase", "RefusedStatement", "start_merging"]


class RefusedStatement(Exception):
    """A statement that DuckDB refuses; says why."""


#: The process that forks, and the worker that waits for the next statement.
_zygotes: list[ZygoteProcess] = []
_idle: list[_Worker] = []


def start_merging() -> None:
    """Start a worker ahead of the first statement, which would wait 0.3 s for it."""
    if not _idle:
        _idle.append(_Worker())


class MergedDatabase:
    """Tables by name, and statements over them. One thread at a time; `cancel` may be called by any."""

    def __init__(self, request: QueryRequest) -> None:
        check_request(request)
        self._request = request
        self._worker = _idle.pop() if _idle else _Worker()
        self._types: dict[str, bool] = {}
        self._call("open", request)

    def close(self) -> None:
        """Drop everything. After a failure the worker is ended."""
        if self._worker.is_fit:
            self._call("close")
        if self._worker.is_fit and not _idle:
            _idle.append(self._worker)
        else:
            self._worker.end()

    def cancel(self) -> None:
        """End the call in progress, and the worker."""
        self._worker.end()

    def only_statement(self, sql: str) -> str:
        """Return the one SELECT (or EXPLAIN, DESCRIBE, SHOW) in `sql`. Raises QueryFailed."""
        return str(self._call("only_statement", sql))

    def create(self, table: str, columns: Mapping[str, str]) -> None:
        """Create the empty table `schema.name`. Raises RefusedStatement for an unknown column type."""
        self._call("create", table, dict(columns))

    def drop(self, table: str) -> None:
        """Drop a table."""
        self._call("drop", table)

    def is_type(self, kind: str) -> bool:
        """Return whether `kind`, perhaps from a host, is a column type: it goes into SQL as it is."""
        if kind not in self._types:
            self._types[kind] = bool(self._call("is_type", kind))
        return self._types[kind]

    def fill(
        self, parts: Sequence[tuple[str, Sequence[tuple[str, str]], bytes]]
    ) -> tuple[dict[str, int], dict[int, str]]:
        """Add the rows of Arrow streams: for each the table, and its columns with their types in the order of the
        stream. Returns how many rows each table got, and for every stream that does not fit why not."""
        malformed = self._undecodable([stream for _, _, stream in parts])
        fitting = [at for at in range(len(parts)) if at not in malformed]
        sent = [(table, list(columns), bytes(stream)) for table, columns, stream in map(parts.__getitem__, fitting)]
        num_rows, found = self._call("fill", sent)
        return num_rows, malformed | {fitting[int(at)]: why for at, why in found.items()}

    def load_parquet(self, table: str, columns: Mapping[str, str], path: str) -> int:
        """Add the rows of a Parquet file, which may be anybody's; returns how many. Raises RefusedStatement."""
        return int(self._call("load_parquet", table, dict(columns), path))

    def _undecodable(self, streams: Sequence[bytes]) -> dict[int, str]:
        """Return which streams must not be decoded in our own worker, and why: some end the process. So they are tried
        in workers of their own."""
        found: dict[int, str] = {}
        at = 0
        while at < len(streams):
            worker = _Worker()
            try:
                ends = monotonic() + self._request.timeout_s
                worker.send(("try_decoding", (list(streams[at:]),)), ends)
                while at < len(streams):
                    why = worker.head(ends).get("value")
                    if why is None:
                        raise ConnectionResetError("it has ended")
                    if why:
                        found[at] = str(why)
                    at += 1
            except (OSError, EOFError):  # it has died of this one, or never comes to an end with it
                found[at] = "its rows cannot be decoded"
                at += 1
            finally:
                worker.end()
        return found

    def parsed(self, sql: str) -> Any:  # DuckDB's own syntax tree, as decoded JSON
        """Return the syntax tree of the query `sql`; None for a statement that has none."""
        return self._call("parsed", sql)

    def expression(self, sql: str) -> Any:  # the same
        """Return the syntax tree of the expression `sql`. Raises RefusedStatement."""
        return self._call("expression", sql)

    def text_of(self, query: Any) -> str:  # the same
        """Return the SQL of a syntax tree. Raises RefusedStatement."""
        return str(self._call("text_of", query))

    def described(self, sql: str) -> list[tuple[str, str]]:
        """Return names and types of the columns of `sql`. Raises RefusedStatement."""
        return [(name, kind) for name, kind in self._call("described", sql)]

    def plan(self, sql: str) -> Any:  # decoded JSON
        """Return the plan of `sql`. Raises RefusedStatement."""
        return self._call("plan", sql)

    def functions(self) -> list[tuple[str, str, str | None]]:
        """Return name, kind and stability of all functions; the same for every database, and 50 ms to list."""
        return [(name, kind, stability) for name, kind, stability in self._call("functions")]

    def value(self, sql: str) -> list[str | None]:
        """Return the only column of `sql`, as text."""
        return list(self._call("value", sql))

    def check(self, sql: str, tables: Mapping[str, Sequence[str]]) -> None:
        """Raise QueryFailed, worded for users, when `sql` cannot be asked; `tables` are those that hints may name."""
        self._call("check", sql, {name: list(columns) for name, columns in tables.items()})

    def json(self, sql: str, notes: Sequence[str]) -> Answer:
        """Return the answer as the JSON of a `wire.QueryResult`. Raises QueryFailed."""
        answer = self._call("json", sql, list(notes))
        assert isinstance(answer, Answer)
        return answer

    def arrow(self, sql: str, notes: Sequence[str]) -> Answer:
        """Return the answer as an Arrow IPC stream. Raises QueryFailed."""
        answer = self._call("arrow", sql, list(notes))
        assert isinstance(answer, Answer)
        return answer

    def _call(self, name: str, *arguments: object) -> Any:  # Any: what that method gives, through JSON
        worker = self._worker
        ends = monotonic() + self._request.timeout_s
        try:
            worker.send((name, arguments), ends)
            said = worker.head(ends)
            if "answer" in said:
                told = said["answer"]
                body = exactly(worker.connection, int(said["length"]))
                return Answer((body,), bool(told["truncated"]), tuple(told["notes"]))
        except TimeoutError:
            worker.end()
            raise out_of_time(self._request.timeout_s) from None
        except (OSError, EOFError):
            said = {"ended": ""}
        if "value" in said:
            return said["value"]
        if "refused" in said:
            raise RefusedStatement(said["refused"])
        worker.is_fit = worker.is_fit and "error" in said and name != "json" and name != "arrow"
        if "error" in said:
            failed: type[ProbeError] = getattr(errors, said["error"], ProbeError)
            raise failed(said["message"], said["hint"])
        if "fault" in said:
            raise RuntimeError(f"in a query worker:\n{said['fault']}")
        if worker.was_ended:
            raise QueryFailed("the query was cancelled", "repeat it")
        raise QueryFailed(
            f"the process that puts the answers together has ended ({said.get('ended') or worker.why()})",
            "ask for less, or ask the hosts one by one",
        )


class _Worker:
    """One worker, with the process that has forked it."""

    def __init__(self) -> None:
        if not _zygotes or _zygotes[-1].has_ended:
            _zygotes[:] = [ZygoteProcess(merging=True)]
        self._zygote = _zygotes[-1]
        self._number, self.connection = self._zygote.fork()
        self.is_fit, self.was_ended = True, False

    def send(self, call: tuple[str, tuple[object, ...]], ends: float) -> None:
        self.connection.settimeout(_left(ends))
        self.connection.sendall(packed(call))

    def head(self, ends: float) -> dict[str, Any]:
        self.connection.settimeout(_left(ends))
        (length,) = HEAD.unpack(exactly(self.connection, HEAD.size))
        if length > MAX_HEAD_BYTES:
            raise ConnectionResetError("a query worker sent something that is not ours")
        said = json.loads(exactly(self.connection, length))
        assert isinstance(said, dict)
        return said

    def why(self) -> str:
        return self._zygote.why() if self._zygote.has_ended else "it was ended"

    def end(self) -> None:
        self.is_fit, self.was_ended = False, True
        self._zygote.tell(self._number, KILL)
        self.connection.close()


def _left(ends: float) -> float:
    return max(0.001, min(ends - monotonic(), 1e8))
