"""A table without rows gives the reason, since when, and the remedy: on stderr, in JSON, and by the exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.commands import Probe, environment, probe_in
from support.waiting import stop

PLAIN = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.02)"


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return probe_in(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def plain(probe: Probe) -> Iterator[str]:
    """The PID of a Python process without torch, attached to."""
    with started(probe) as pid:
        yield pid


@contextmanager
def started(probe: Probe) -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-c", PLAIN], stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            assert probe(str(process.pid), "inject").returncode == 0
            yield str(process.pid)
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def test_a_process_without_torch_has_no_steps_and_says_so(probe: Probe, plain: str) -> None:
    table = probe(plain, "query", "SELECT step FROM python.steps")
    aggregate = probe(plain, "query", "SELECT count(*) FROM python.steps")

    for answer in (table, aggregate):
        assert "python.steps: no rows: torch is not imported in this process" in answer.stderr
        assert "the recorder started" in answer.stderr
        assert "; try: " in answer.stderr
    assert (table.returncode, aggregate.returncode) == (1, 0)
    assert aggregate.stdout.split()[-1] == "0"


def test_several_processes_without_steps_say_so_as_one_does(probe: Probe, plain: str) -> None:
    with started(probe) as other:
        table = probe("-t", plain, "-t", other, "query", "SELECT step FROM python.steps")
        aggregate = probe("-t", plain, "-t", other, "query", "SELECT count(*) FROM python.steps")
        filtered = probe("-t", plain, "-t", other, "query", "SELECT ts FROM probe.errors WHERE source = 'x'")

    assert "python.steps: no rows: torch is not imported in this process" in table.stderr
    assert (table.returncode, aggregate.returncode, filtered.returncode) == (1, 0, 0)


def test_rows_that_do_not_fit_are_no_missing_ones(probe: Probe, plain: str) -> None:
    filtered = probe(plain, "query", "SELECT ts FROM probe.overhead WHERE calls < 0")
    healthy = probe(plain, "query", "SELECT * FROM probe.errors")

    assert "no rows" not in filtered.stderr or "first row comes" in filtered.stderr
    assert (healthy.returncode, healthy.stderr.count("no rows")) == (0, 0)


def test_tables_gives_each_reason_once(probe: Probe, plain: str) -> None:
    answer = probe(plain, "tables")

    (reason,) = [line for line in answer.stderr.splitlines() if "torch is not imported" in line]
    assert {"python.collectives", "python.spans", "python.steps"} <= set(reason.partition(": ")[0].split(", "))


def test_a_table_that_a_command_fills_names_the_command(probe: Probe, plain: str) -> None:
    answer = probe(plain, "query", "SELECT * FROM python.variables")

    assert "probe … watch-var" in answer.stderr
    assert answer.returncode == 1


def test_watching_a_variable_of_a_process_without_steps_says_why(plain: str) -> None:
    command = ["probe", plain, "watch-var", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as it:
        assert it.stderr is not None
        said = it.stderr.readline()
        it.send_signal(signal.SIGINT)

    assert "no step has ended" in said
    assert "torch is not imported" in said


def test_a_target_that_cannot_answer_still_has_its_reason(probe: Probe, plain: str) -> None:
    stop(int(plain))
    try:
        answer = probe(plain, "query", "SELECT step FROM python.steps")
    finally:
        os.kill(int(plain), signal.SIGCONT)

    assert "torch is not imported in this process" in answer.stderr


def test_detach_takes_the_reasons_with_it(probe: Probe) -> None:
    with subprocess.Popen([sys.executable, "-c", PLAIN], stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        probe(str(process.pid), "inject")
        (folder,) = Path(f"/dev/shm/probe-{os.getuid()}").glob(f"{process.pid}-*")
        there = (folder / "awaited.json").exists()
        probe(str(process.pid), "detach")
        process.kill()

    assert there
    assert not folder.exists()
