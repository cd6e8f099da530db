"""Decoder for untrusted Arrow streams.

Runs in a worker of the CLI, which may crash: the C library that decodes them trusts some lengths in them. Of 12,000
streams with a few wrong bytes, two crashed the process that read them. A file of its own, so that the crash has a name.
"""

from __future__ import annotations

from typing import Any

from nanoarrow import c_array_stream  # type: ignore[import-untyped]
from nanoarrow.ipc import InputStream  # type: ignore[import-untyped]

__all__ = ["decoded", "failure"]


def decoded(stream: bytes) -> tuple[Any, list[Any]]:  # nanoarrow's, which has no types
    """Return schema and arrays of an Arrow IPC stream."""
    with InputStream.from_readable(stream) as readable:
        arrays = c_array_stream(readable)
        return arrays.get_schema(), list(arrays)


def failure(stream: bytes) -> str:
    """Return why a stream cannot be decoded, in one line; empty if it can."""
    try:
        decoded(stream)
    except Exception as error:  # noqa: BLE001  # any error that wrong bytes cause in the library
        said = (str(error).strip().splitlines() or [""])[0]
        return f"its rows cannot be read: {said[:200] or type(error).__name__}"
    return ""
