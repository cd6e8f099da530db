"""Arrow streams of others: decoded, and before that tried in a child process, which may die of it.

Runs in the CLI, on the answers of host servers. The C library that decodes them trusts some lengths in them: of 12,000
streams with a few wrong bytes two ended the process that read them. One child a round, about 10 ms.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import select
import signal
import time
from collections.abc import Sequence
from typing import Any, NoReturn

__all__ = ["decoded", "undecodable"]

_TRY_S = 30.0


def decoded(stream: bytes) -> tuple[Any, list[Any]]:  # nanoarrow's, which has no types
    """Schema and arrays of an Arrow IPC stream."""
    from nanoarrow import c_array_stream  # type: ignore[import-untyped]
    from nanoarrow.ipc import InputStream  # type: ignore[import-untyped]

    with InputStream.from_readable(stream) as readable:
        arrays = c_array_stream(readable)
        return arrays.get_schema(), list(arrays)


def undecodable(streams: Sequence[bytes]) -> dict[int, str]:
    """Which of `streams` cannot be decoded, and why: some of them end the process that tries, or never let it end."""
    found = {}
    first = 0
    while first < len(streams):
        said = _said_by_a_child(streams[first:])
        found.update({first + at: why for at, why in enumerate(said) if why})
        first += len(said)
        if first < len(streams):
            found[first] = "its rows cannot be decoded"
            first += 1
    return found


def _said_by_a_child(streams: Sequence[bytes]) -> list[str]:
    """Of each stream why it cannot be decoded, empty where it can, up to the one that a child of ours died of."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _decode_and_exit(streams, writing)
    os.close(writing)
    said = b""
    ends = time.monotonic() + _TRY_S
    while select.select([reading], [], [], max(0.0, ends - time.monotonic()))[0]:
        data = os.read(reading, 1 << 16)
        if not data:
            break
        said += data
    os.close(reading)
    os.kill(child, signal.SIGKILL)  # it has ended, unless it never would
    os.waitpid(child, 0)
    return said.decode("utf-8", "replace").split("\n")[:-1]


def _decode_and_exit(streams: Sequence[bytes], writing: int) -> NoReturn:
    """The child's part: a line for each stream."""
    faulthandler.disable()  # nobody needs to hear of its end, nor find a core
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for stream in streams:
            os.write(writing, _failure(stream).encode() + b"\n")
    finally:
        os._exit(0)


def _failure(stream: bytes) -> str:
    """Why it cannot be decoded, in one line; empty if it can."""
    try:
        decoded(stream)
    except Exception as error:  # noqa: BLE001  # whatever the library makes of wrong bytes: it is told
        said = (str(error).strip().splitlines() or [""])[0]
        return f"its rows cannot be read: {said[:200] or type(error).__name__}"
    return ""
