"""A job's own tables and steps: nothing before the attach, rows after it, nothing after the detach."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.commands import Probe, environment
from support.forked import Forked

JOB = """
import time
import torch
import probe_agent
print("ready", flush=True)
number = 0
while True:
    number += 1
    probe_agent.record("episodes", number=number, reward=number / 2, map="cave", won=number % 2 == 0)
    probe_agent.record("episodes", number="wrong")
    probe_agent.step()
    time.sleep(0.01)
"""


@contextmanager
def job() -> Iterator[str]:
    with Forked(["-c", JOB], stdout=subprocess.PIPE, text=True, env=environment()) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield str(running.pid)
        finally:
            running.kill()


def rows(probe: Probe, pid: str, sql: str) -> list[list[Any]]:
    done = probe(pid, "query", "--format", "json", sql)
    assert done.returncode == 0, done.stderr
    return [list(row.values()) for row in json.loads(done.stdout)]


@pytest.mark.torch
def test_an_attach_finds_the_calls_of_the_jobs_own_copy(probe: Probe) -> None:
    pytest.importorskip("torch")
    with job() as pid:
        deadline = time.monotonic() + 20
        while not (errors := rows(probe, pid, "SELECT source, message FROM probe.errors")):
            assert time.monotonic() < deadline
        while probe(pid, "query", "SELECT step FROM python.steps").returncode:  # no step has ended yet
            assert time.monotonic() < deadline
        found = rows(probe, pid, "SELECT pid, step, number, reward, map, won FROM job.episodes ORDER BY number")
        steps = rows(probe, pid, "SELECT step FROM python.steps ORDER BY ts")

    numbers = [row[2] for row in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    for host_pid, _, number, *values in found:
        assert [str(host_pid), *values] == [pid, number / 2, "cave", number % 2 == 0]
    assert [row[1] - found[1][1] for row in found[1:]] == list(range(len(found) - 1))
    assert [row[0] for row in steps] == list(range(1, len(steps) + 1))
    assert {row[0] for row in errors} == {"probe_agent.record"}
    assert "record('episodes') at <string>:10: number='wrong': the column is a whole number" in errors[0][1]
    assert len(errors) <= 20
