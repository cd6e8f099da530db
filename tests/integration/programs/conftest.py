"""Runs of the programs in kinds/: each as its undisturbed twin, recorded from its first line, and attached to midway.

Programs that need torch are forked by one process that has imported it (tests/support/forked.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.commands import environment
from support.forked import Forked, ForkServer
from support.ports import free_port

from probe_agent.activate import start as activate
from probe_agent.sql.query_engine import QueryEngine
from probe_agent.targets import TargetDirectory
from probe_agent.wire import QueryRequest

KINDS = Path(__file__).with_name("kinds")
PATH_ENTRY = str(Path(activate.__file__).with_name("path"))
#: Every third step with all its modules, so that there are steps of each kind; nothing is left out for its cost.
ALL = {"PROBE": "1", "PROBE_TRACE_EVERY": "3", "PROBE_TRACE_DEEP_EVERY": "1", "PROBE_TRACE_BUDGET": "0"}
#: Our own thread looks at once, so that a short program is long enough for it.
ALL["PROBE_FLUSH_INTERVAL"] = "0.02"
TABLES = ("python.steps", "python.torch_trace", "python.replicas", "probe.errors")
#: What a program tells of itself that is the same whenever it runs.
LASTING = ("steps", "losses", "digest")
END_S = 60.0

Row = dict[str, Any]


@dataclass
class Ran:
    """One process of a program that has ended: its output, its report, and the recorded rows."""

    pid: int
    code: int
    out: str
    err: str
    tables: Mapping[str, list[Row]] = field(default_factory=dict)

    @property
    def truth(self) -> dict[str, Any]:
        """Return its own report, from its last line."""
        assert self.code == 0, (self.code, self.err)
        told: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return told

    @property
    def said(self) -> tuple[int | None, list[str], list[object]]:
        """Return everything that a user sees of it, apart from times."""
        said = [*self.out.splitlines()[:-1], *re.sub(r"\d+", "N", self.err).splitlines()]  # torch logs time and process
        return self.code, said, [self.truth[name] for name in LASTING]

    @property
    def steps(self) -> list[Row]:
        return self.tables["python.steps"]

    def trace(self, stage: str) -> list[Row]:
        return [row for row in self.tables["python.torch_trace"] if row["stage"] == stage]


class Programs:
    """Runs of programs; each once per session as its twin, and once recorded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        #: A server of their own: for some, libraries are imported that other programs do without.
        self._server = ForkServer("torch", PYTHONPATH=f"{KINDS}:{PATH_ENTRY}")
        self._engine = QueryEngine()
        self.twin = cache(self._twin)
        self.recorded = cache(self.record)

    def close(self) -> None:
        self._server.close()
        self._engine.close()

    def _twin(self, name: str, needs: tuple[str, ...] = ("torch",), ranks: int = 1) -> list[Ran]:
        return [self.end(*one) for one in self._start(name, needs, ranks, {})]

    def record(self, name: str, needs: tuple[str, ...] = ("torch",), ranks: int = 1) -> list[Ran]:
        """Run it once more with the recorder."""
        ended = [self.end(*one) for one in self._start(name, needs, ranks, ALL)]
        for one in ended:
            one.tables = self.tables(one.pid)
        return ended

    def start(self, name: str, needs: tuple[str, ...] = ("torch",), **environ: str) -> tuple[int, Path]:
        """Start one process of a program; return its number, and the folder of its streams."""
        return self._start(name, needs, 1, environ)[0]

    def _start(self, name: str, needs: Sequence[str], ranks: int, environ: Mapping[str, str]) -> list[tuple[int, Path]]:
        launched = {}
        if ranks > 1:
            launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        started = []
        for rank in range(ranks):
            folder = self._folder / f"{name}-{len(os.listdir(self._folder))}"
            folder.mkdir()
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            full = environment(PYTHONPATH=f"{KINDS}:{PATH_ENTRY}", **launched, **of_rank, **environ)
            program = KINDS / f"{name}.py"
            with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
                how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, "env": full}
                if needs:
                    process = Forked([program], server=self._server, needs=needs, **how)
                else:
                    process = subprocess.Popen([sys.executable, str(program)], **how)
            self._processes[process.pid] = process
            started.append((process.pid, folder))
        return started

    def end(self, pid: int, folder: Path) -> Ran:
        """Return the same once it has ended."""
        code = self._processes.pop(pid).wait(END_S)
        return Ran(pid, code, (folder / "out").read_text(), (folder / "err").read_text())

    def tables(self, pid: int) -> dict[str, list[Row]]:
        """Return the contents of a process's rings."""
        targets = TargetDirectory().choose(pid=pid)
        return {table: self._rows(targets, table) for table in TABLES}

    def _rows(self, targets: Any, table: str) -> list[Row]:
        async def body() -> bytes:
            request = QueryRequest(f"SELECT * FROM {table}", timeout_s=30.0)
            return await (await self._engine.answer(targets, request)).body()

        answer = json.loads(asyncio.run(body()))
        names = [column["name"] for column in answer["columns"]]
        return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


@pytest.fixture(scope="package")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Runs programs by name."""
    pytest.importorskip("torch")
    running = Programs(tmp_path_factory.mktemp("programs"))
    yield running
    running.close()
