"""Parquet out of the Arrow IPC stream that a server sent. Values arrive as stored: NaN stays NaN.

The door to nanoarrow and DuckDB in the command line, for files and notebooks.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import duckdb
import nanoarrow  # type: ignore[import-untyped]

from probe_agent.wire import quoted

__all__ = ["ArrowStream", "parquet_writer"]


class ArrowStream:
    """An Arrow IPC stream that can be read more than once: DuckDB before 2.0 asks for the schema first."""

    def __init__(self, stream: bytes) -> None:
        self._stream = stream

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return nanoarrow.ArrayStream.from_readable(self._stream).__arrow_c_stream__(requested_schema)


@contextmanager
def parquet_writer() -> Iterator[Callable[..., bytes]]:
    """Give a function that returns the rows of an Arrow IPC stream as a Parquet file, and every text in them as its
    second argument gives it, if there is one. To open the database for it takes 25 ms."""
    with tempfile.TemporaryDirectory(prefix="probe-") as folder, duckdb.connect() as database:
        path = os.path.join(folder, "answer.parquet")

        def parquet(stream: bytes, changed: Callable[[str], str] | None = None) -> bytes:
            rows = database.from_arrow(ArrowStream(stream))
            if changed is not None:
                database.execute("DROP TABLE IF EXISTS answer")
                rows.create("answer")
                rows = database.table("answer")
                for column, kind in zip(rows.columns, rows.types, strict=True):
                    if str(kind) == "VARCHAR":
                        _change(database, quoted(column), changed)
                rows = database.table("answer")
            rows.write_parquet(path)
            with open(path, "rb") as file:
                return file.read()

        yield parquet


def _change(database: duckdb.DuckDBPyConnection, column: str, changed: Callable[[str], str]) -> None:
    texts = [text for (text,) in database.execute(f"SELECT DISTINCT {column} FROM answer").fetchall() if text]
    for text in texts:
        if (other := changed(text)) != text:
            database.execute(f"UPDATE answer SET {column} = ? WHERE {column} = ?", [other, text])
