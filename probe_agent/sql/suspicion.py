"""Whether Arrow streams can be decoded at all: tried in a child process, which may die of it.

Runs in the CLI, on the answers of host servers. The C library that decodes them trusts some lengths in them: of 12,000
streams with a few wrong bytes two ended the process that read them. One child a round, about 10 ms.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import time
from collections.abc import Sequence

__all__ = ["undecodable"]

_TRY_S = 30.0


def undecodable(streams: Sequence[bytes]) -> set[int]:
    """Which of `streams` end the process that decodes them (or never let it end)."""
    found = set()
    first = 0
    while first < len(streams):
        num_good = _num_decoded(streams[first:])
        if first + num_good < len(streams):
            found.add(first + num_good)
        first += num_good + 1
    return found


def _num_decoded(streams: Sequence[bytes]) -> int:
    """How many of `streams` a child of ours could look at before it died."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _decode_and_exit(streams, writing)
    os.close(writing)
    num_decoded = 0
    ends = time.monotonic() + _TRY_S
    os.set_blocking(reading, False)
    while (ended := os.waitpid(child, os.WNOHANG)[0]) == 0 and time.monotonic() < ends:
        num_decoded += _read(reading)
        time.sleep(0.001)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    num_decoded += _read(reading)
    os.close(reading)
    return num_decoded


def _read(reading: int) -> int:
    try:
        return len(os.read(reading, 1 << 16))
    except BlockingIOError:
        return 0


def _decode_and_exit(streams: Sequence[bytes], writing: int) -> None:
    """The child's part: a byte for each stream that has been looked at, whatever came of it."""
    import nanoarrow  # type: ignore[import-untyped]

    faulthandler.disable()  # nobody needs to hear of its end, nor find a core
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for stream in streams:
        try:
            for _ in nanoarrow.ArrayStream.from_readable(stream):
                pass
        except Exception:  # noqa: BLE001, S110  # a proper error comes again, in the parent, and is told there
            pass
        os.write(writing, b".")
    os._exit(0)
