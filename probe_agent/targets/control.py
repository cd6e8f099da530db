"""Client of a target's control socket: one request a connection, JSON lines.

`ask` blocks its thread until the answer is there; `stream` belongs to an event loop. Both turn what a socket raises
into an error with a hint. Runs beside the target, where a request costs one short thread.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from select import select
from time import monotonic, sleep
from typing import Any

from probe_agent import inject
from probe_agent.errors import BadRequest, Forbidden, NoAnswer
from probe_agent.procfs import read_process
from probe_agent.untrusted_files import socket_address
from probe_agent.wire import SettingInfo, SettingList, decode

from .target import Target

__all__ = ["ANSWER_S", "ask", "settings", "stream"]

#: How long a target may take to answer unless the caller knows better.
ANSWER_S = 2.0
#: A recorder that has been silent for this long may not get the GIL by itself.
SILENCE_S = 0.1
#: How long to wait where as many connections as the kernel keeps for a recorder wait for it already.
_QUEUE_S = 0.02
#: The longest line that is accepted from a target: a `repr` can be long.
_MAX_LINE_BYTES = 64 << 20

Answer = dict[str, Any]  # one decoded JSON line, as the operation answers it


def ask(target: Target, op: str, *, timeout_s: float = ANSWER_S, **fields: object) -> Answer:
    """Return the one answer of `target` to `op`. Raises NoAnswer, or BadRequest with what the target objects to."""
    deadline = monotonic() + timeout_s
    data = bytearray()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            with socket_address(target.control_path) as address:
                _connect(connection, address, deadline)
            connection.sendall(_line(op, fields))
            # The recorder's tick may take the turn that the nudge was for, so it is nudged again.
            while not select([connection], [], [], min(timeout_s, SILENCE_S))[0] and monotonic() < deadline:
                _wake(target)
            while not data.endswith(b"\n"):
                connection.settimeout(max(0.001, deadline - monotonic()))
                received = connection.recv(1 << 20)
                if not received or len(data) > _MAX_LINE_BYTES:
                    raise ConnectionResetError("it closed the connection before its answer was complete")
                data += received
    except OSError as error:
        raise _no_answer(target, op, error, timeout_s) from error
    return _decoded(target, bytes(data))


def settings(target: Target, changes: Mapping[str, str] | None = None) -> SettingList:
    """Make `changes` and return all settings of the recorder. Raises NoAnswer, or BadRequest for a wrong change."""
    answer = ask(target, "config", changes=dict(changes or {}))
    found = tuple(decode(SettingInfo, setting) for setting in answer.get("settings", ()))
    return SettingList(found, tuple(map(str, answer.get("notes", ()))))


async def stream(target: Target, op: str, **fields: object) -> AsyncIterator[Answer]:
    """The lines of `target`'s answer as they arrive, the last one with `done`. Closing this cancels the operation."""
    try:
        with socket_address(target.control_path) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=_MAX_LINE_BYTES)
    except OSError as error:
        raise _no_answer(target, op, error, ANSWER_S) from error
    waking = asyncio.create_task(_wake_after_silence(target))
    try:
        writer.write(_line(op, fields))
        await writer.drain()
        while True:
            line = await reader.readline()
            waking.cancel()
            if not line:
                raise ConnectionResetError("it closed the connection before its answer was complete")
            answer = _decoded(target, line)
            yield answer
            if answer.get("done"):
                return
    except (OSError, ValueError) as error:  # ValueError: a line longer than we take
        raise _no_answer(target, op, error, ANSWER_S) from error
    finally:
        waking.cancel()
        writer.close()  # the target takes a closed connection for "cancel"


def _connect(connection: socket.socket, address: str, deadline: float) -> None:
    while True:
        try:
            return connection.connect(address)
        except BlockingIOError:  # of a unix socket: its queue is full
            if monotonic() > deadline:
                raise TimeoutError from None
            sleep(_QUEUE_S)


async def _wake_after_silence(target: Target) -> None:
    await asyncio.sleep(SILENCE_S)
    await asyncio.to_thread(_wake, target)


def _wake(target: Target) -> None:
    """Help the recorder to get the GIL, if we may."""
    if target.process is not None and target.is_alive:
        inject.wake(target.pid)


def _line(op: str, fields: dict[str, object]) -> bytes:
    return json.dumps({"op": op, **fields}).encode() + b"\n"


def _decoded(target: Target, line: bytes) -> Answer:
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise NoAnswer(
            f"{target} answered with something that is not JSON",
            f"attach again with this version: probe {target.pid} detach, then probe {target.pid} inject",
        )
    if error := answer.get("error"):
        refused = Forbidden if error.get("kind") == Forbidden.__name__ else BadRequest
        raise refused(str(error.get("message", "")), str(error.get("hint", "")))
    return answer


def _no_answer(target: Target, op: str, error: Exception, timeout_s: float) -> NoAnswer:
    process = read_process(target.process.pid) if target.process else None
    if not (target.is_alive if process is None else process.is_alive) or (target.process and process is None):
        return NoAnswer(
            f"{target} has ended: it cannot answer {op}", f"query what it recorded: probe {target.pid} tables"
        )
    state = process.state if process else target.state
    if isinstance(error, TimeoutError) and state.startswith("stopped"):
        return NoAnswer(f"{target} did not answer {op}: it is {state}", f"continue it: kill -CONT {target.pid}")
    if isinstance(error, TimeoutError):
        return NoAnswer(
            f"{target} did not answer {op} within {timeout_s:g} s, though it is {state}:"
            " a thread in it may hold the GIL",
            f"read its stacks, which needs no GIL: probe {target.pid} backtrace --all",
        )
    if isinstance(error, PermissionError):
        return NoAnswer(f"cannot connect to {target}: {error.strerror}", "run as the target's user, or as root")
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        return NoAnswer(
            f"{target} has the files of a recorder, but no recorder listens",
            f"attach again: probe {target.pid} inject",
        )
    return NoAnswer(
        f"{target} closed the connection while it answered {op}: {error}",
        "see with probe list if it has ended or been detached",
    )
