"""Ranks whose launcher catches their exception: torchrun's `@record`, and `torch.multiprocessing.spawn`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.targets import torchrun

from probe_agent.targets.ended import end_of

from .conftest import FOLDER, rows

pytestmark = [pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(300)]

RECORDED = """
import os, sys, time
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    open(f"{sys.argv[1]}/pid{os.environ['RANK']}", "w").write(str(os.getpid()))
    if os.environ["RANK"] == "1":
        time.sleep(2)
        raise ValueError("rank 1 has bad data")
    time.sleep(60)
main()
"""

SPAWNED = """
import os, sys, time, traceback
import torch.multiprocessing as mp
def train(rank):
    open(f"{sys.argv[1]}/pid{rank}", "w").write(str(os.getpid()))
    deadline = time.monotonic() + 60
    while traceback.format_exc.__name__ == "format_exc" and time.monotonic() < deadline:
        time.sleep(0.01)  # until the recorder is there
    if rank == 1:
        raise ValueError("rank 1 has bad data")
    time.sleep(60)
if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""


def files(folder: Path, rank: int) -> Path:
    return next(FOLDER.glob(f"{(folder / f'pid{rank}').read_text()}-*"))


def test_an_exception_that_torchruns_record_has_seen_is_kept(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RECORDED)
    command = torchrun(2, [str(script), str(tmp_path)])
    done = subprocess.run(command, env=environment(PROBE="1"), capture_output=True, text=True, timeout=200)

    found = rows(files(tmp_path, 1))
    end = end_of(str(files(tmp_path, 1)))

    assert done.returncode != 0
    assert [(row["type"], row["message"], row["func"]) for row in found] == [
        ("ValueError", "rank 1 has bad data", "main")
    ]
    assert end is not None
    assert (end.how, end.code) == ("raised ValueError: rank 1 has bad data", 1)


def test_an_exception_that_spawn_passes_to_its_parent_is_kept(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPAWNED)
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, env=environment(PROBE="all"), capture_output=True, text=True, timeout=200)

    found = rows(files(tmp_path, 1))
    end = end_of(str(files(tmp_path, 1)))

    assert done.returncode == 1
    assert [(row["type"], row["message"], row["is_main"]) for row in found] == [
        ("ValueError", "rank 1 has bad data", True)
    ]
    assert end is not None
    assert (end.how, end.code) == ("raised ValueError: rank 1 has bad data", 1)
