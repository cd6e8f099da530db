"""Programs of targets/frameworks.py, one process per framework (two ranks if distributed), each queried once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.targets import forked, forked_ranks, target

from tests.integration.distributed.conftest import Job


@contextmanager
def start(folder: Path, kind: str) -> Iterator[Job]:
    program = target("frameworks.py", folder, kind)
    environ = {**os.environ, "PROBE_TRACE_EVERY": "2", "PROBE_TRACE_DEEP_EVERY": "2", "PROBE_TRACE_BUDGET": "0"}
    started = forked_ranks(2, program, folder, environ) if kind == "distributed" else forked(program, folder, environ)
    with started as job:
        yield Job(folder, job)


class Trained:
    """One job under the recorder: its own report, and the rows recorded meanwhile."""

    def __init__(self, job: Job, rank: int, told: dict[str, Any]) -> None:
        self.job = job
        self.rank = rank
        self.told = told
        self.num_steps: int = told["num_steps"]
        self._when = f"epoch(ts) BETWEEN {told['began']} AND {told['ended']}"

    def rows(self, table: str, columns: str = "*", where: str = "true") -> list[list[Any]]:
        return self.job.rows(f"SELECT {columns} FROM {table} WHERE {self._when} AND {where} ORDER BY ts", self.rank)

    def errors(self) -> list[list[Any]]:
        return self.job.rows("SELECT source, message, traceback FROM probe.errors", self.rank)


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Trained]]:
    """`trained("accelerate", "accelerate")`: the process of that kind is started on the first use."""
    pytest.importorskip("torch")
    running: dict[str, tuple[Any, Job]] = {}

    def of(kind: str, name: str, rank: int = 0) -> Trained:
        if kind not in running:
            needs = {"generating": "transformers"}.get(kind, kind)
            if needs in ("transformers", "lightning", "accelerate") and find_spec(needs) is None:
                pytest.skip(f"{needs} is not installed (extra `frameworks`)")
            context = start(tmp_path_factory.mktemp(kind), kind)
            running[kind] = (context, context.__enter__())
        job = running[kind][1]
        found = Trained(job, rank, job.done(rank)[name])
        job.until(lambda: len(found.rows("python.steps", "step")) >= found.num_steps - 1)
        return found

    yield of
    for context, _ in running.values():
        context.__exit__(None, None, None)
