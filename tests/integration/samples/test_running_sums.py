"""Whoever asks for sums that keep graphs, and for what exceptions keep, changes no number of the job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import environment, probe
from support.targets import target
from support.waiting import until

pytestmark = pytest.mark.torch
SUMS = "SELECT place, items, added FROM python.containers WHERE \"class\" = 'Tensor' ORDER BY place"

EXCEPTIONS = "SELECT place FROM python.containers WHERE \"class\" = 'list of exceptions'"


def losses_of(folder: Path, *, asked: bool) -> list[str]:
    """The losses of a short run, or of one that is asked three times for its sums."""
    folder.mkdir()
    command = [sys.executable, *target("sums_losses.py", folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(OMP_NUM_THREADS="1")) as job:
        try:
            if asked:
                pid = str(job.pid)
                for _ in range(3):
                    mean, bank = until(lambda: sums(pid))
                    exceptions = probe(pid, "query", EXCEPTIONS).stdout
                    assert "local `kept` of main()" in exceptions, exceptions
                    assert mean["place"].startswith("['loss'] of local `means` of main()")
                    assert bank["place"].startswith("buffer `bank` of module `0` of local `model` of main()")
                    assert all(row["items"] > row["added"] > 0 for row in (mean, bank))
        finally:
            (folder / "stop").touch()
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 0
    return said.split()


def sums(pid: str) -> list[dict[str, Any]]:
    """The two sums, once they are told: when they have grown between two looks, in steps that end meanwhile."""
    rows = json.loads(probe(pid, "query", "--format", "json", SUMS).stdout or "[]")
    return rows if len(rows) == 2 else []


def test_the_losses_are_those_of_a_run_that_nobody_asked(tmp_path: Path) -> None:
    alone, asked = (losses_of(tmp_path / str(is_asked), asked=is_asked) for is_asked in (False, True))

    common = min(len(alone), len(asked))
    assert common > 100
    assert asked[:common] == alone[:common]
