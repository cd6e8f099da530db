"""A job that hung before the attach: `compare` finds the rank it waits for in the records of torch itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from time import monotonic, sleep

import pytest
from support.commands import plain
from support.forked import Forked

pytest.importorskip("torch")

from probe_cli.main import run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

STANDS_STILL_S = 90.0
PROGRAM = Path(__file__).parents[2] / "targets" / "hung_job.py"


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    environ = plain()
    started = [
        Forked(
            [PROGRAM, str(rank), "3", str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
            env={**environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": "3"},
        )
        for rank in range(3)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "hangs\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.long
def test_a_hang_is_reported_with_the_missing_rank(ranks: list[subprocess.Popen[str]]) -> None:
    named = [word for process in ranks for word in ("-t", str(process.pid))]
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        run([*named, "ranks"])  # attaches
        code, deadline = 1, monotonic() + STANDS_STILL_S
        while code == 1 and monotonic() < deadline:
            sleep(0.5)  # it has to stand still for 10 s, or for twice the longest time that its ranks took to start
            out.seek(0)
            out.truncate()
            code = run([*named, "compare", "--format", "json"])
    verdict = json.loads(out.getvalue())["verdict"]

    assert (code, verdict["state"], verdict["ranks"]) == (7, "hangs", [1]), out.getvalue() + err.getvalue()
    reached = "rank 1 has not come to all_reduce 21 of group default_pg (0), in which ranks 0,2 wait"
    assert verdict["sentence"].startswith(f"the job hangs: {reached}")
    assert "no rank has ended a step or called a collective for " in verdict["sentence"]
    assert f"{PROGRAM.name}:19" in verdict["sentence"]  # the line that sleeps
    assert all(process.poll() is None for process in ranks)
