"""A worker that puts the answers of several hosts together, one call after the other.

Runs in a process of its own, forked by the zygote of the command line.
"""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probe_agent.errors import ProbeError
from probe_agent.wire import QueryRequest

from .engine.kernel_limits import hold_memory
from .engine.request import Answer, out_of_memory
from .merged import MergeExecutor
from .merging import RefusedStatement
from .untrusted_arrow import failure
from .workers.frames import received, send_body, send_head

__all__ = ["work"]

#: How many times over what comes in one call may be here at once: as it came, decoded, in DuckDB.
_COPIES = 4


def work(connection: socket.socket, _threads: int) -> None:
    """Answer what comes over `connection` until it is closed."""
    database: MergeExecutor | None = None
    request = QueryRequest("")
    try:
        while True:
            call = received(connection)
            assert isinstance(call, tuple)
            name, arguments = call
            streams = arguments[0] if name == "try_decoding" else []
            streams = [stream for _, _, stream in arguments[0]] if name == "fill" else streams
            hold_memory(request.memory_mb, _COPIES * sum(map(len, streams)))
            if name == "try_decoding":
                for stream in streams:  # told one by one: the next may be the last thing that we do
                    send_head(connection, {"value": failure(stream)})
            elif name == "open":
                (request,) = arguments
                database = MergeExecutor(request)
                send_head(connection, {"value": None})
            else:
                _answer(connection, request, getattr(database, name), arguments)
    except (EOFError, OSError):
        return  # the command has ended


def _answer(
    connection: socket.socket, request: QueryRequest, act: Callable[..., Any], arguments: Sequence[object]
) -> None:
    said: Mapping[str, object]
    try:
        value = act(*arguments)
    except RefusedStatement as refusal:
        said = {"refused": str(refusal)}
    except ProbeError as error:
        said = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    except MemoryError:
        reached = out_of_memory(request.memory_mb)
        said = {"error": type(reached).__name__, "message": reached.message, "hint": reached.hint}
    except Exception:  # noqa: BLE001  # a fault of ours: the command tells it
        said = {"fault": traceback.format_exc()[-4000:]}
    else:
        if isinstance(value, Answer):
            told = {"truncated": value.truncated, "notes": value.notes}
            send_head(connection, {"answer": told, "length": sum(map(len, value.pieces))})
            send_body(connection, value.pieces)
            return
        said = {"value": value}
    send_head(connection, said)
