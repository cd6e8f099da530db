"""PROBE_READONLY: the target itself refuses every change, from every client and in every way."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import probe

from .conftest import FOLDER, started, wait_for_target

PROBE = str(Path(sys.executable).parent / "probe")
#: Says at its end what somebody may have changed in it.
TRAINS = """
import os, sys, threading
rate = 0.1
print(os.getpid(), flush=True)
sys.stdin.read()
print(rate, sorted(n for n in vars(sys.modules["__main__"]) if not n.startswith("_")), "PROBE_READONLY" in os.environ)
"""
REFUSED = {
    "eval": {"code": "rate = 1.0; import __main__; __main__.rate = 1.0"},
    "complete": {"text": "rat"},
    "config": {"changes": {"trace.every": "1"}},
    "profile_steps": {"steps": 1},
    "watch_var": {"expressions": ["rate"]},
    "detach": {},
    "stacks": {"locals": True},
    "an operation that is added some day": {},
}


def ask(pid: int, op: str, **fields: object) -> dict[str, object]:
    """Return the recorder's answer on its own socket."""
    (path,) = FOLDER.glob(f"{pid}-*/control.sock")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        connection.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")
        answer: dict[str, object] = json.loads(connection.makefile().readline())
        return answer


@pytest.fixture(scope="module")
def target() -> Iterator[subprocess.Popen[str]]:
    with started(sys.executable, "-c", TRAINS, PROBE_READONLY="1") as process:
        wait_for_target(process.pid)
        yield process
        out, err = process.communicate("", timeout=30)
        assert out.splitlines()[-1] == "0.1 ['os', 'rate', 'sys', 'threading'] True"
        assert (err, process.returncode) == ("", 0)


@pytest.mark.situation("PROBE_READONLY=1", "the target itself refuses eval, settings, profiles, watch-var and detach")
@pytest.mark.parametrize("operation", REFUSED)
def test_the_recorder_refuses_what_would_change_the_target(target: subprocess.Popen[str], operation: str) -> None:
    answer = ask(target.pid, operation, **REFUSED[operation])

    error = answer["error"]
    assert isinstance(error, dict)
    known = operation != "an operation that is added some day"
    assert ("PROBE_READONLY" in error["message"]) is known


def test_operations_that_only_read_are_answered(target: subprocess.Popen[str]) -> None:
    for operation in ("hello", "stacks", "config", "flush", "modules", "optimizers", "dataloaders", "process_groups"):
        assert "error" not in ask(target.pid, operation), operation


def test_the_command_line_says_so_and_root_is_refused_as_well(target: subprocess.Popen[str]) -> None:
    pid = str(target.pid)

    asked = (("eval", "1"), ("profile", "--cpu", "1s"), ("backtrace", "--native"), ("backtrace", "--locals"))
    refused = [probe(pid, *words) for words in asked]  # the second and third ask no recorder
    answered = probe(pid, "query", "--format", "json", "SELECT count(*) AS frames FROM python.backtrace")

    for done in refused:
        assert done.returncode == 1, done.args
        assert "(PROBE_READONLY)" in done.stderr
    assert json.loads(answered.stdout)[0]["frames"] > 0
