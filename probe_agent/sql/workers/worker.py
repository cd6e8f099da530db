"""Query worker: runs one statement at a time, under limits that the kernel enforces.

Runs in a process of its own, forked by the zygote. It maps the rings itself, read-only, and asks the server for rows of
live tables, because the server has the targets' sockets and the GPUs' history.
"""

from __future__ import annotations

import socket
import traceback
from collections.abc import Mapping, Sequence
from select import select
from time import perf_counter

import duckdb

from probe_agent.errors import ProbeError
from probe_agent.sql.engine.execute import Executor
from probe_agent.sql.engine.kernel_limits import GROWN_BYTES, hold_cpu, mapped_bytes
from probe_agent.sql.engine.request import out_of_memory
from probe_agent.sql.tables.declarations import known_tables
from probe_agent.sql.tables.live_rows import LiveRows

from .frames import Job, received, send_body, send_head

__all__ = ["work"]

#: How often an idle worker checks whether rings that it has mapped are gone.
_LOOK_S = 5.0
#: Errors after which DuckDB or its allocator cannot be trusted.
_BROKEN = (MemoryError, duckdb.OutOfMemoryException, duckdb.FatalException, duckdb.InternalException)

known_tables(())  # load the declarations once, in the zygote


def work(connection: socket.socket, threads: int) -> None:
    """Answer what comes over `connection` until it is closed, or this process is not fit for more."""
    executor = Executor(threads)
    at_first = mapped_bytes()
    try:
        while True:
            while not select([connection], [], [], _LOOK_S if executor.mapped_rings else None)[0]:
                executor.forget_removed()
            job = received(connection)
            assert isinstance(job, Job)
            is_fit = _answer(connection, executor, job, threads)
            is_fit = is_fit and mapped_bytes() - executor.mapped_rings - at_first < GROWN_BYTES
            send_head(connection, {"done": True, "fit": is_fit})
            if not is_fit:
                return
    except (EOFError, OSError):
        return  # the server is gone


def _answer(connection: socket.socket, executor: Executor, job: Job, threads: int) -> bool:
    """Send the outcome of one statement. Return False if this process should not run another one."""

    def take(names: Sequence[str]) -> Mapping[str, LiveRows]:
        send_head(connection, {"live": list(names)})
        taken = received(connection)
        if isinstance(taken, ProbeError):
            raise taken
        assert isinstance(taken, dict)
        return taken

    began = perf_counter()
    hold_cpu(job.request.timeout_s * threads)
    try:
        answer = executor.run(job.targets, job.request, job.remarks, take, arrow=job.arrow, began=began)
    except ProbeError as error:
        cause = error.__cause__ or error.__context__
        _send_error(connection, error)
        return not isinstance(cause, _BROKEN)
    except MemoryError:
        _send_error(connection, out_of_memory(job.request.memory_mb))
        return False
    except (EOFError, ConnectionError):
        raise
    except Exception:  # noqa: BLE001  # a bug of ours: the server reports it and goes on
        send_head(connection, {"fault": traceback.format_exc()[-4000:]})
        return False
    length = sum(map(len, answer.pieces))
    told = {"truncated": answer.truncated, "notes": answer.notes, "tables": dict(answer.tables)}
    told["missing"] = answer.missing
    send_head(connection, {"answer": told, "length": length})
    send_body(connection, answer.pieces)
    return True


def _send_error(connection: socket.socket, error: ProbeError) -> None:
    send_head(connection, {"error": type(error).__name__, "message": error.message, "hint": error.hint})
