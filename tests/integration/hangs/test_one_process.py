"""`probe … hang` on a process that stood still before a recorder was in it: no step and no collective tells."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.commands import environment, probe_in
from support.forked import Forked
from support.targets import target
from support.waiting import until

from probe_agent.procfs import Process

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@contextmanager
def halted(how: str) -> Iterator[int]:
    """A job that has not run for some seconds."""
    command = target("halting.py", how)
    with Forked(command, stdout=subprocess.PIPE, text=True, env=environment(OMP_NUM_THREADS="1")) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            until(lambda: Process(process.pid).asleep_s().get(process.pid, 0.0) > 4.0, 60)
            yield process.pid
        finally:
            process.kill()


def test_a_deadlock_of_two_threads_is_a_hang_however_short(tmp_path: Path) -> None:
    with halted("deadlock") as pid:
        done = probe_in(tmp_path)(str(pid), "hang", "--between", "0.5", "--format", "json")

    said = json.loads(done.stdout)["verdict"]
    assert (done.returncode, said["state"], said["ranks"]) == (1, "hangs", [0])
    assert "second is held by its thread logger, which waits for a lock in log (halting.py:" in said["sentence"]
    assert "first is held by the thread that waits, since halt (halting.py:" in said["sentence"]


def test_how_long_a_process_had_stood_still_is_known_though_the_attach_woke_it(tmp_path: Path) -> None:
    """Whether it hangs is not said of a process that might have work in a minute."""
    probe = probe_in(tmp_path)
    with halted("queue") as pid:
        done = probe(str(pid), "hang", "--between", "0.5", "--format", "json")
        diagnosis = json.loads(probe(str(pid), "diagnose", "--rule", "job-hangs", "--format", "json").stdout)

    said = json.loads(done.stdout)["verdict"]
    assert (done.returncode, said["state"]) == (3, "unknown")
    found = re.match(
        r"nothing has moved for ([\d.]+) s, .*: rank 0 waits for a queue \(get\) in halt", said["sentence"]
    )
    assert found is not None, said["sentence"]
    assert float(found[1]) > 4.0
    assert diagnosis["findings"] == []
