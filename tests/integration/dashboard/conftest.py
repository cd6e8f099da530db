"""A real job of four ranks, a host server beside it, and the browser of this machine, if there is one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import environment, probe
from support.ports import free_address
from support.waiting import until

from probe_agent.server.dashboard.files import DIST

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session", autouse=True)
def browser() -> None:
    """Skip where nothing can be looked at, and say why."""
    pytest.importorskip("playwright", reason="Playwright is not installed")
    from support.browser import CHROMIUM

    if not CHROMIUM:
        pytest.skip("no Chromium on this machine: apt install chromium")
    if not Path(DIST, "index.html").is_file():
        pytest.skip("no dashboard has been bundled: python hatch_build.py says why")


@dataclass
class Job:
    """Four ranks; a file in `folder` changes what they do."""

    folder: Path
    pids: list[int]
    name: str
    runtime: str

    def link(self, *options: str) -> str:
        """A link of `probe dashboard` to the host server beside the job."""
        done = probe("dashboard", "--no-open", *options, PROBE_RUNTIME_DIR=self.runtime)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def order(self, what: str) -> None:
        (self.folder / what).touch()

    def take_back(self, what: str) -> None:
        (self.folder / what).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("job")
    port = free_address().rpartition(":")[2]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-port", port]
    with (
        tempfile.TemporaryDirectory(prefix="probe-") as runtime,
        subprocess.Popen(
            [*torchrun, str(ROOT / "tests" / "targets" / "watched_job.py"), str(folder)],
            env=environment(PROBE="1", PROBE_RUNTIME_DIR=runtime),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as running,
    ):
        try:
            yield until(lambda: _started(folder, runtime, running.pid), timeout_s=240)
        finally:
            for what in ("hang", "stop"):
                (folder / what).unlink(missing_ok=True)
            running.terminate()
            running.wait(30)
            probe("stop", PROBE_RUNTIME_DIR=runtime)


def _started(folder: Path, runtime: str, launcher: int) -> Job | None:
    pids = [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]
    found = [pid for pid in pids if list(Path("/dev/shm").glob(f"probe-{os.getuid()}/{pid}-*/target.json"))]
    if len(found) < 4:
        return None
    said = probe(str(found[0]), "query", "SELECT any_value(job), count(*) FROM python.steps", "--format", "csv",
                 PROBE_RUNTIME_DIR=runtime).stdout.split()  # fmt: skip
    name, _, steps = said[-1].partition(",") if said else ("", "", "0")
    return Job(folder, found, name, runtime) if steps.isdigit() and int(steps) > 30 and name else None
