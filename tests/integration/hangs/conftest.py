"""Jobs that hang, each for a reason of its own, for all tests of this folder."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import environment
from support.targets import target
from support.waiting import until

DUMPED = ["absent", "operation", "order", "healthy", "gil"]
LIVE = ["few", "sends", "trains", "times_out"]


@pytest.fixture(scope="package")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with one folder for each job: dumps and PIDs of its ranks, after all that hang have halted."""
    folder = tmp_path_factory.mktemp("jobs")
    process = subprocess.Popen(
        [sys.executable, *target("hanging_ranks.py", folder, *DUMPED, *LIVE)],
        env=environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: all(has_halted(folder / fault) for fault in DUMPED), 120, process=process)
        yield folder
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def has_halted(folder: Path) -> bool:
    """Return whether each rank has made the calls of seven steps, and its dump is older than its last call."""
    for rank in range(4):
        path = folder / f"nccl_trace_rank_{rank}"
        entries = pickle.loads(path.read_bytes())["entries"] if path.exists() else []
        if len(entries) < 21 or path.stat().st_mtime < entries[-1]["time_created_ns"] * 1e-9 + 2:
            return False
    return True
