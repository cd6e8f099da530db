"""Parquet out of the Arrow IPC stream that a server sent. Values arrive as stored: NaN stays NaN.

Imported by `--format parquet` alone: the door to nanoarrow and DuckDB in the command line.
"""

from __future__ import annotations

import os
import tempfile

import duckdb
import nanoarrow  # type: ignore[import-untyped]

__all__ = ["parquet"]


class _Stream:
    """An Arrow IPC stream that can be read more than once: DuckDB before 2.0 asks for the schema first."""

    def __init__(self, stream: bytes) -> None:
        self._stream = stream

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return nanoarrow.ArrayStream.from_readable(self._stream).__arrow_c_stream__(requested_schema)


def parquet(stream: bytes) -> bytes:
    """The rows of the Arrow IPC `stream` as a Parquet file."""
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        path = os.path.join(folder, "answer.parquet")
        duckdb.connect().from_arrow(_Stream(stream)).write_parquet(path)
        with open(path, "rb") as file:
            return file.read()
