"""Decoder for Arrow streams of others.

Runs in a worker of the CLI's, which may die of it: the C library that decodes them trusts some lengths in them. Of
12,000 streams with a few wrong bytes two ended the process that read them.
"""

from __future__ import annotations

from typing import Any

from nanoarrow import c_array_stream  # type: ignore[import-untyped]
from nanoarrow.ipc import InputStream  # type: ignore[import-untyped]

__all__ = ["decoded", "failure"]


def decoded(stream: bytes) -> tuple[Any, list[Any]]:  # nanoarrow's, which has no types
    """Schema and arrays of an Arrow IPC stream."""
    with InputStream.from_readable(stream) as readable:
        arrays = c_array_stream(readable)
        return arrays.get_schema(), list(arrays)


def failure(stream: bytes) -> str:
    """Why it cannot be decoded, in one line; empty if it can."""
    try:
        decoded(stream)
    except Exception as error:  # noqa: BLE001  # whatever the library makes of wrong bytes: it is told
        said = (str(error).strip().splitlines() or [""])[0]
        return f"its rows cannot be read: {said[:200] or type(error).__name__}"
    return ""
