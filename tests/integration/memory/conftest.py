"""Two jobs of `leaking.py` at once, each with the recorder in it, and `probe … memory` as programs read it."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.commands import plain, probe
from support.forked import Forked
from support.targets import target
from support.waiting import until

pytest.importorskip("torch")

KINDS = ("leaking", "healthy")
#: A busy machine takes long to import torch.
START_S = 90.0
#: Of the job that leaks: its limit in bytes, as `ulimit -v` sets it.
ADDRESS_SPACE = 6 << 30


@dataclass(frozen=True)
class Job:
    """A running `leaking.py`."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_ready(self) -> bool:
        return (self.folder / "output").read_bytes().startswith(b"ready")

    def memory(self, *options: str) -> dict[str, Any]:
        """What `probe PID memory` answers, with its exit code."""
        done = probe(str(self.pid), "memory", *options, "--format", "json")
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["targets"][0]
        return {**found, "exit_code": done.returncode, "stderr": done.stderr}


@pytest.fixture(scope="package")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    with ExitStack() as stack:
        started = {}
        for kind in KINDS:
            folder = tmp_path_factory.mktemp(kind)
            process = stack.enter_context(_running(kind, folder))
            stack.callback(process.kill)
            started[kind] = Job(process, folder)
        for job in started.values():
            until(partial(_is_attached, job), START_S, process=job.process)
        yield started


def _is_attached(job: Job) -> bool:
    """Attach as soon as it is ready; on a busy machine the agent may start later."""
    return job.is_ready and probe(str(job.pid), "inject").returncode == 0


def _running(kind: str, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "output").open("wb") as output:
        process = Forked(target("leaking.py", kind, folder), stdout=output, stderr=subprocess.STDOUT, env=plain())
    if kind == "leaking":
        resource.prlimit(process.pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    return process


@pytest.fixture(scope="package")
def judged(jobs: dict[str, Job]) -> Callable[[str, str], dict[str, Any]]:
    """Return what `memory` says of a job once it can tell if the series grows; of one that leaks, once it grows."""

    def look(kind: str, series: str) -> dict[str, Any] | None:
        found = jobs[kind].memory()
        state = found["trends"].get(series, {}).get("state", "too early to tell")
        return found if state == "grows" or (kind == "healthy" and state != "too early to tell") else None

    def wait(kind: str, series: str) -> dict[str, Any]:
        found = until(lambda: look(kind, series), timeout_s=120, process=jobs[kind].process)
        assert found is not None
        return found

    return wait
