"""Handshake with the recorder in a target: whether it is there, and its first answer.

Runs in the attaching process; the target is asked over its socket.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from select import select
from time import monotonic, sleep
from typing import Any

from probe_agent.errors import AttachDelayed
from probe_agent.recorder.ring.folder import CONTROL, TARGET

from . import py_spy
from .folder import connect, folders, is_held, link_text, names
from .nudge import nudge
from .payload import ERROR, PAYLOAD, TAKEN
from .threads.tracee import Tracee

__all__ = ["failure", "has_begun", "hello", "is_waiting", "running", "wait_for_hello", "wait_taken"]

#: A recorder answers within milliseconds unless a thread holds the GIL.
ANSWER_S = 0.8
#: A recorder that is starting is asked again after this long.
LISTEN_S = 0.3
#: A recorder that has been silent for this long may not get the GIL by itself.
SILENCE_S = 0.1


def running(process: Tracee) -> tuple[Path, dict[str, Any]] | None:
    """Return the folder and the answer of the recorder that runs in the process; None if there is none."""
    for folder in folders(process):
        answer = hello(process, folder)
        if answer is not None:
            return folder, answer
    return None


def is_waiting(process: Tracee, folder: Path) -> bool:
    """Return whether a payload lies there that the target has not taken yet."""
    return PAYLOAD in (names(process, folder) or ())


def has_begun(process: Tracee, folder: Path) -> bool:
    """Return whether a recorder has begun to start there: it has taken the payload, or holds the folder.

    One that has written its identity holds the folder as long as it runs; if it does not, an exec has ended it.
    """
    there = names(process, folder) or ()
    return is_held(process, folder) or (TAKEN in there and TARGET not in there)


def wait_taken(process: Tracee, folder: Path, deadline: float, is_in_vain: Callable[[], bool]) -> bool:
    """Wait until the target has taken the payload or said why it cannot. Return False if `deadline` passes first."""
    next_nudge = monotonic() + SILENCE_S
    while is_waiting(process, folder) and failure(process, folder) is None:
        if monotonic() > deadline or is_in_vain():
            return False
        if process.has_ended():
            raise ProcessLookupError(process.pid)
        if monotonic() > next_nudge:
            nudge(process, folder)
            next_nudge = monotonic() + SILENCE_S
        sleep(0.0005)
    return True


def failure(process: Tracee, folder: Path) -> str | None:
    """Return why the recorder did not start, as the target has written it down; None if it has not."""
    return link_text(process, folder, ERROR)


def hello(process: Tracee, folder: Path, timeout_s: float = ANSWER_S) -> dict[str, Any] | None:
    """Return the recorder's answer to hello; None if there is no recorder. Raises AttachDelayed if it is silent."""
    try:
        return _hello(process, folder, timeout_s)
    except TimeoutError:
        holder = py_spy.gil_holder(process.pid)
        raise AttachDelayed(
            f"the agent is in pid {process.pid} already, but did not answer within {timeout_s:.1f} s: "
            + (
                f"{py_spy.holder_text(holder)}; it will answer when the GIL is released"
                if holder
                else "a C call may hold the GIL"
            ),
            f"read its stacks, which needs no GIL: probe {process.pid} backtrace --all",
        ) from None


def _hello(process: Tracee, folder: Path, timeout_s: float) -> dict[str, Any] | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connect(process, folder / CONTROL, connection)
            connection.sendall(b'{"op": "hello"}\n')
            until = monotonic() + timeout_s
            # The recorder's tick may take the turn that the nudge was for, so it is nudged again.
            while not select([connection], [], [], SILENCE_S)[0] and monotonic() < until:
                nudge(process, folder)
            line = connection.makefile("rb").readline()
        except TimeoutError:
            raise
        except OSError:
            return None  # not listening yet, or no longer
    return json.loads(line) if line else None


def wait_for_hello(
    process: Tracee, folder: Path, deadline: float, is_in_vain: Callable[[], bool]
) -> dict[str, Any] | None:
    """Return the recorder's first answer; None if it failed, or has not answered by `deadline`."""
    pause_s, next_nudge = 0.001, monotonic() + SILENCE_S
    while (left_s := deadline - monotonic()) > 0 and failure(process, folder) is None:
        with suppress(TimeoutError):
            answer = _hello(process, folder, min(max(left_s, SILENCE_S), LISTEN_S))
            if answer is not None:
                return answer
        if is_in_vain():
            return None
        if process.has_ended():
            raise ProcessLookupError(process.pid)
        if monotonic() > next_nudge:
            nudge(process, folder)
            next_nudge = monotonic() + SILENCE_S
        sleep(pause_s)
        pause_s = min(0.02, pause_s * 1.5)
    return None
