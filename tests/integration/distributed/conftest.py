"""Jobs of a few ranks on gloo, each rank with its recorder in the test's folder."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.targets import Ranks, forked_ranks
from support.waiting import until

pytest.importorskip("torch")

from probe_agent.sql.query_engine import QueryEngine
from probe_agent.targets import TargetDirectory
from probe_agent.wire import QueryRequest

PROGRAM = Path(__file__).parents[2] / "targets" / "collectives.py"
START_S = 90.0


class Job:
    """A running job; `rows` queries its targets, as a query on the same host would."""

    def __init__(self, folder: Path, process: Ranks) -> None:
        self.folder = folder
        self.process = process
        self.directory = TargetDirectory((str(folder),))
        self._engine = QueryEngine()

    def close(self) -> None:
        self._engine.close()

    def done(self, rank: int) -> dict[str, Any]:
        """Return what this rank has computed, once it has."""
        path = self.folder / f"done-{rank}.json"
        self.until(path.exists, START_S)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def rows(self, sql: str, rank: int | None = None) -> list[list[Any]]:
        targets = self.directory.choose(rank=rank)

        async def body() -> bytes:
            return await (await self._engine.answer(targets, QueryRequest(sql, timeout_s=30.0))).body()

        rows: list[list[Any]] = json.loads(asyncio.run(body()))["rows"]
        return rows

    def until(self, condition: Callable[[], object], timeout_s: float = 30.0) -> Any:
        """Return the value of `condition` once it is true."""
        return until(condition, timeout_s, (self.folder / "output").read_text, self.process)


@contextmanager
def start_job(folder: Path, what: str, *, program: Path = PROGRAM, ranks: int = 2) -> Iterator[Job]:
    """Run a program of targets/; end it with the block."""
    with forked_ranks(ranks, [str(program), str(folder), what], folder, dict(os.environ)) as process:
        job = Job(folder, process)
        try:
            yield job
        finally:
            job.close()
