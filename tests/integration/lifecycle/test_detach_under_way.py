"""A detach during another operation of ours: it is cancelled, and nothing remains."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import pytest
from inject.conftest import LEFT_NOTHING, detach
from support.waiting import until

from probe_agent import inject
from probe_cli.main import run

from .conftest import training, wait_until_ready


@contextmanager
def eval_under_way(folder: Path, code: str, **more: object) -> Iterator[socket.socket]:
    """An eval that has been requested, and has reported that it runs if it prints anything."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(folder / "control.sock"))
        connection.sendall(json.dumps({"op": "eval", "code": code, **more}).encode() + b"\n")
        yield connection


EVALS = {
    "running": "print('here')\nwhile True: pass",
    "printing": "while True: print('here')",
    "sleeping": "import time\nprint('here')\ntime.sleep(1.5)",
}


@pytest.mark.situation("detach while an eval runs, prints or sleeps", "the eval is cancelled, and nothing remains")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name != "running")) for name in EVALS])
def test_an_eval_is_ended(start: Callable[..., Any], name: str) -> None:
    target = start("spin")
    before = len(os.listdir(f"/proc/{target.pid}/task"))
    attached = inject.attach(target.pid)

    with eval_under_way(attached.folder, EVALS[name]) as connection:
        answer = connection.makefile()
        assert "here" in answer.readline()
        with ThreadPoolExecutor(1) as other:
            detaching = other.submit(detach, attached)
            last = json.loads(answer.readlines()[-1])
            detaching.result()
    until(lambda: len(os.listdir(f"/proc/{target.pid}/task")) == before)
    end = target.finish()

    assert last["done"]
    assert end["left"] == LEFT_NOTHING
    assert not attached.folder.exists()


BROKEN = """
import gc
(faults,) = [one for one in gc.get_objects() if type(one).__name__ == "FaultDump"]
type(faults).disarm = lambda self: 1 / 0
print("here")
"""


def test_a_part_that_cannot_be_undone_keeps_no_other_from_it(start: Callable[..., Any]) -> None:
    target = start("spin")
    attached = inject.attach(target.pid)
    with eval_under_way(attached.folder, BROKEN) as connection:
        assert "here" in connection.makefile().readline()

    detach(attached)  # answered

    assert target.finish()["left"] == LEFT_NOTHING
    assert not attached.folder.exists()


@pytest.mark.torch
@pytest.mark.situation("detach while an eval waits for the next step", "the code never runs")
def test_an_eval_that_waits_for_a_step_never_runs(start: Callable[..., Any], tmp_path: Path) -> None:
    target = start("spin")  # takes no steps
    attached = inject.attach(target.pid)

    with eval_under_way(attached.folder, f"open({str(tmp_path / 'ran')!r}, 'w')", at_step=True) as connection:
        sleep(0.2)  # it waits by now; if not, it is refused
        detach(attached)
        lines = [json.loads(line) for line in connection.makefile()]

    assert target.finish()["left"] == LEFT_NOTHING
    assert not (tmp_path / "ran").exists()
    assert not lines or lines[-1]["state"] == "cancelled"


@pytest.mark.torch
@pytest.mark.situation(
    "detach while code is held for a step that all ranks agree on", "it never runs, and nothing remains"
)
def test_held_code_never_runs_after_a_detach(tmp_path: Path) -> None:
    with training("eager", tmp_path) as target:
        wait_until_ready(target)
        states = []
        for moves in (["look"], ["arm"], ["arm", "go"]):
            attached = inject.attach(target.pid)
            with hold(attached.folder, f"open({str(tmp_path / 'ran')!r}, 'w')") as connection:
                answer = connection.makefile()
                assert json.loads(answer.readline()) == {"held": True}
                assert all(move(attached.folder, "t", do) for do in moves)
                detach(attached)
                states.append(json.loads(answer.readlines()[-1])["state"])
        (tmp_path / "look").touch()
        seen = target.num_steps
        until(lambda: target.num_steps > seen + 100, 60.0)
        said = target.finish()

    assert states == ["cancelled"] * 3
    assert not (tmp_path / "ran").exists()
    assert said["after"][0] == said["before"][0]


@contextmanager
def hold(folder: Path, code: str) -> Iterator[socket.socket]:
    """Hold code under the ticket `t`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(folder / "control.sock"))
        connection.sendall(json.dumps({"op": "hold", "code": code, "ticket": "t"}).encode() + b"\n")
        yield connection


def move(folder: Path, ticket: str, do: str) -> bool:
    """Return whether the recorder makes this move, for a step that never comes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(folder / "control.sock"))
        asked = {"op": "ticket", "ticket": ticket, "do": do, "step": 10**9}
        connection.sendall(json.dumps(asked).encode() + b"\n")
        return bool(json.loads(connection.makefile().readline()).get("ok"))


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.situation("detach in the middle of sampled steps, while it is queried", "the job goes on undisturbed")
def test_sampled_steps_and_queries_do_not_mind(tmp_path: Path, probe: Any) -> None:
    with training("eager", tmp_path) as target:
        wait_until_ready(target)
        codes: list[int] = []
        queries: list[list[int]] = []
        for _ in range(4):
            attached = inject.attach(target.pid)
            codes.append(probe(target.pid, "config", "trace.every=1", "trace.deep_every=1")[0])
            with ThreadPoolExecutor(2) as others:
                answered = Event()
                asked = others.submit(ask_many, attached.folder)
                detaching = others.submit(detach_once, answered, attached)
                queries.append(query_many(target.pid, answered, detaching))  # the command line wants the main thread
                detaching.result()
                asked.result()
        (tmp_path / "look").touch()
        seen = target.num_steps
        until(lambda: target.num_steps > seen + 400, 60.0)
        said = target.finish()

    assert codes == [0] * 4
    assert all(0 in answers and answers[-1] == 4 for answers in queries), queries  # answered, until it was detached
    assert all(set(answers) <= {0, 4} for answers in queries), queries
    assert said["after"][0] == said["before"][0]


def detach_once(answered: Event, attached: inject.Attached) -> None:
    assert answered.wait(30)
    detach(attached)


def query_many(pid: int, answered: Event, detaching: Future[None]) -> list[int]:
    """Query until there is no recorder any more, or none will go; return the exit codes."""
    sql = "SELECT COUNT(*), MAX(ts) FROM python.torch_trace"
    codes: list[int] = []
    while not codes or codes[-1] == 0:
        codes.append(run(["--no-inject", str(pid), "query", sql]))
        answered.set()
        if detaching.done() and codes[-1] == 0:
            detaching.result()  # raises what kept it from going
            codes.append(run(["--no-inject", str(pid), "query", sql]))
            break
    return codes


def ask_many(folder: Path) -> None:
    """Ask for stacks until there is no answer any more."""
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(10)
                connection.connect(str(folder / "control.sock"))
                connection.sendall(b'{"op": "stacks", "all": true}\n')
                while connection.recv(1 << 16):
                    pass
        except OSError:
            return


@pytest.mark.busy_machine("its target takes one processor, and an attach needs the other in time")
@pytest.mark.situation("detach from a target that starves other threads of the GIL", "completes in time")
@pytest.mark.parametrize("name", ["spin", pytest.param("malloc", marks=pytest.mark.long)])
def test_a_starving_target_lets_go(start: Callable[..., Any], probe: Any, name: str) -> None:
    target = start(name)

    codes = [probe(target.pid, command)[0] for _ in range(3) for command in ("inject", "detach")]

    assert codes == [0] * 6
    assert target.finish()["left"] == LEFT_NOTHING
