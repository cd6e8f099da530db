"""Hosts that are DuckDB databases: what each would send for a split SELECT, put together as the command line does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb

from probe_agent.sql.engine.statement import arrow_stream
from probe_agent.sql.merged import MergeExecutor
from probe_agent.wire import QueryRequest
from probe_cli.cluster.sql.split import Splitter

__all__ = ["Answers", "answer_in_parts", "merging", "split_text"]

Answers = list[tuple[object, ...]]
REQUEST = QueryRequest("SELECT 1")


def merging(tables: Mapping[str, Mapping[str, str]]) -> MergeExecutor:
    """An executor with these tables, empty."""
    executor = MergeExecutor(REQUEST)
    for name, columns in tables.items():
        executor.create(name, columns)
    return executor


def split_text(
    executor: MergeExecutor, tables: Mapping[str, Mapping[str, str]], sql: str, max_rows: int | None = None
) -> tuple[str, str]:
    """The SQL of the hosts, and the one that merges what they send into the table `_probe.parts`."""
    part, merged = Splitter(executor, tables).split(executor.parsed(sql), "_probe.parts", max_rows)  # type: ignore[arg-type]
    return executor.text_of(part.select), executor.text_of(merged)


def answer_in_parts(
    hosts: Sequence[duckdb.DuckDBPyConnection], tables: Mapping[str, Mapping[str, str]], sql: str
) -> Answers:
    """The answer to `sql` that is merged from the parts of all hosts. Raises Unsplittable."""
    executor = merging(tables)
    try:
        part, merged = Splitter(executor, tables).split(executor.parsed(sql), "_probe.parts", 1000)  # type: ignore[arg-type]
        text = executor.text_of(part.select)
        streams = [b"".join(arrow_stream(host.sql(text), REQUEST)[0]) for host in hosts]
        _, malformed = executor.fill([(part.into, part.columns, stream) for stream in streams])
        assert not malformed
        return executor._connection.execute(executor.text_of(merged)).fetchall()
    finally:
        executor.close()
