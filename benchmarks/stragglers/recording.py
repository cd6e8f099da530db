"""Cases as files: the rows of all ranks in Parquet with what was planted, and targets made of them again.

FOLDER/KIND-FAULT-RANKS-N/truth.json, python.collectives.parquet, python.steps.parquet, …
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import duckdb

from benchmarks.agent import PROBE
from benchmarks.process import plain_environment
from benchmarks.simulated import add_target
from probe_agent.recorder.ring.table import COORDINATES, KINDS, Column, Table

from .job import Job, Truth

__all__ = ["record", "recorded", "restored", "truth_of"]

#: Table -> the column that says when a row began.
TABLES = {
    "python.collectives": "start",
    "python.steps": "ts",
    "python.torch_trace": "ts",
    "process.samples": "ts",
    "python.gc": "ts",
}
#: Those of a whole job.
WHOLE = ("torch.process_groups", "python.groups")
#: Rows of collectives that C++ called come so late, and on a busy machine at most so late.
LATE_S, MAX_LATE_S = 17.0, 60.0
#: Exit code.
SOME_UNANSWERED = 3
KIND_OF = {sql: kind for kind, (_, sql) in KINDS.items()}


def record(job: Job, truths: Sequence[tuple[str, Truth]], folder: Path) -> list[Path]:
    """Write the rows of these windows of a resting job; names get a number."""
    sleep(LATE_S)
    deadline = monotonic() + MAX_LATE_S - LATE_S
    while _newest_call(job.pids) < max(truth.end for _, truth in truths) and monotonic() < deadline:
        sleep(5.0)
    made = []
    with TemporaryDirectory() as whole:
        for table in TABLES:
            _query(job.pids, f"SELECT * FROM {table}", Path(whole, f"{table}.parquet"))
        for table in WHOLE:
            _query(job.pids, f"SELECT * FROM {table}", Path(whole, f"{table}.parquet"))
        oldest = _oldest_call(Path(whole))
        for name, truth in truths:
            if oldest > truth.begin + 1.0:
                print(f"{name}: its first rows have been overwritten, it is left out", file=sys.stderr)
                continue
            number = next(n for n in range(1, 10_000) if not (folder / f"{name}-{n}").exists())
            mine = folder / f"{name}-{number}"
            mine.mkdir(parents=True)
            for table, column in TABLES.items():
                source = Path(whole, f"{table}.parquet")
                if source.exists():
                    duckdb.sql(
                        f"COPY (SELECT * FROM '{source}' WHERE epoch({column}) BETWEEN {truth.begin} AND {truth.end}"
                        f" ORDER BY rank, {column}) TO '{mine / source.name}' (COMPRESSION zstd)"
                    )
            for table in WHOLE:
                if (source := Path(whole, f"{table}.parquet")).exists():
                    (mine / source.name).write_bytes(source.read_bytes())
            (mine / "truth.json").write_text(json.dumps(asdict(truth), indent=1) + "\n")
            made.append(mine)
    return made


def _oldest_call(whole: Path) -> float:
    """Return since when the calls of all ranks are still there."""
    calls = whole / "python.collectives.parquet"
    if not calls.exists():
        return 0.0
    oldest = f"SELECT epoch(min(start)) AS oldest FROM '{calls}' GROUP BY pid"
    return float(duckdb.sql(f"SELECT max(oldest) FROM ({oldest})").fetchall()[0][0])


def _newest_call(pids: Sequence[int]) -> float:
    """Return until when the calls of all ranks are recorded."""
    newest = "SELECT epoch(max(start)) AS newest FROM python.collectives GROUP BY pid"
    with TemporaryDirectory() as folder:
        path = Path(folder, "newest.parquet")
        _query(pids, f"SELECT coalesce(min(newest), 0) FROM ({newest})", path)
        return float(duckdb.read_parquet(str(path)).fetchall()[0][0]) if path.exists() else 0.0


def _query(pids: Sequence[int], sql: str, path: Path) -> None:
    command = [PROBE, *(word for pid in pids for word in ("-t", str(pid))), "query", sql, "--format", "parquet"]
    command += ["-o", str(path), "--max-rows", "10000000", "--timeout", "100", "--memory", "2000"]
    command += ["--host-timeout", "100", "--max-transfer", "2000"]
    done = subprocess.run(command, env=plain_environment(), timeout=300, capture_output=True, text=True, check=False)
    if done.returncode == SOME_UNANSWERED:
        raise RuntimeError(done.stderr[-500:])  # a case without some of its ranks is none


def recorded(folder: Path) -> list[Path]:
    """Return the folders of all cases."""
    return sorted(path.parent for path in folder.glob("*/truth.json"))


def truth_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    return found


@contextmanager
def restored(folder: Path) -> Iterator[list[str]]:
    """Yield endpoints: folders of targets with the rows of a case, one for each rank."""
    with TemporaryDirectory(dir="/dev/shm") as base:
        tables = {path.stem: duckdb.read_parquet(str(path)) for path in folder.glob("*.*.parquet")}
        recorded_tables = {name: rows for name, rows in tables.items() if name in (*TABLES, "python.groups")}
        who = duckdb.sql(
            f"SELECT DISTINCT host, pid, rank, world_size FROM '{folder / 'python.steps.parquet'}' ORDER BY rank"
        ).fetchall()
        for host, pid, rank, world_size in who:
            made = [_rows(name, rows.filter(f"rank = {rank}")) for name, rows in recorded_tables.items()]
            add_target(Path(base), host, pid, rank, world_size, made)
        folders = {int(path.name.split("-")[0]): str(path) for path in Path(base, f"probe-{os.getuid()}").iterdir()}
        yield [folders[pid] for _, pid, _, _ in who]


def _rows(name: str, rows: duckdb.DuckDBPyRelation) -> tuple[type[Table], list[tuple[object, ...]]]:
    skipped = {column.name for column in COORDINATES}
    columns = tuple(
        Column(column, KIND_OF[str(kind)], "", "")
        for column, kind in zip(rows.columns, rows.types, strict=True)
        if column not in skipped
    )
    wanted = ", ".join(
        f'epoch_us("{column.name}")' if column.kind == "time" else f'"{column.name}"' for column in columns
    )
    table = type("Restored", (Table,), {"name": name, "doc": "", "columns": columns})
    return table, rows.project(wanted).fetchall()
