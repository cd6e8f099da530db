"""Tables of all ranks as files: FOLDER/TABLE/rank-RANK-PID.parquet, or one DuckDB file made of these.

A rank's rows are written as they come and then dropped, so the memory it takes does not grow with the number of ranks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from probe_agent.wire import TableInfo, quoted
from probe_cli.client import Client
from probe_cli.cluster.ranks.listing import Rank
from probe_cli.cluster.report import TABLES, Limits, take
from probe_cli.endpoint import Endpoint
from probe_cli.progress import Work
from probe_cli.render.columnar import parquet_writer

__all__ = ["Saved", "file_names", "save_tables", "write_database"]

#: Ranks whose rows are in memory at once.
MAX_AT_ONCE = 16


@dataclass(frozen=True)
class Saved:
    """What has been written of one rank, and what was left out, and why."""

    tables: tuple[TableInfo, ...]
    left_out: list[str] = field(default_factory=list)


def file_names(ranks: Sequence[tuple[Endpoint, Rank]]) -> dict[Endpoint, str]:
    """The name of each rank's files, which no two have in common."""
    names: dict[Endpoint, str] = {}
    for endpoint, one in ranks:
        rank = "unknown" if one.info.rank is None else one.info.rank
        name = f"rank-{rank}-{one.info.pid}"
        taken = sum(other == name or other.startswith(f"{name}-") for other in names.values())
        names[endpoint] = f"{name}-{taken + 1}" if taken else name  # hosts may give the same number
    return names


def save_tables(
    limits: Limits, folder: Path, names: Mapping[Endpoint, str], work: Work
) -> Callable[[Client], Awaitable[Saved]]:
    """Return the question for the tables of one rank, which writes them to `folder`."""
    slots = asyncio.Semaphore(MAX_AT_ONCE)
    tables_of = take(limits, TABLES)

    async def ask(client: Client) -> Saved:
        async with slots:
            taken = await tables_of(client)
            with parquet_writer() as parquet:
                for table, stream in taken.rows.items():
                    path = folder / table / f"{names[client.endpoint]}.parquet"
                    path.parent.mkdir(exist_ok=True)
                    try:
                        path.write_bytes(await asyncio.to_thread(parquet, stream))
                    except (ValueError, RuntimeError, duckdb.Error) as error:
                        taken.left_out.append(f"{table}: its rows cannot be read: {error}")
        work.advance()
        return Saved(taken.tables, taken.left_out)

    return ask


def write_database(path: Path, folder: Path, tables: Iterable[TableInfo]) -> None:
    """Write the Parquet files in `folder` as tables of a DuckDB file, with what the columns mean as comments."""
    known = {table.name: table for table in tables}
    with duckdb.connect(str(path)) as database:
        database.execute("SET TimeZone='UTC'")
        for own in sorted(folder.iterdir()):
            schema, _, name = own.name.rpartition(".")
            table = quoted(schema or "main", name)
            database.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema or 'main')}")
            files = [str(file) for file in sorted(own.glob("*.parquet"))]
            # Ranks of another version may have other columns.
            database.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet(?, union_by_name=true)", [files])
            if own.name in known:
                _comment(database, table, known[own.name])


def _comment(database: duckdb.DuckDBPyConnection, table: str, info: TableInfo) -> None:
    database.execute(f"COMMENT ON TABLE {table} IS {_text(info.doc)}")
    present = {name for name, *_ in database.execute(f"DESCRIBE {table}").fetchall()}
    for column in info.columns:
        if column.name in present:
            meaning = f"{column.meaning} ({column.unit})" if column.unit else column.meaning
            database.execute(f"COMMENT ON COLUMN {table}.{quoted(column.name)} IS {_text(meaning)}")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
