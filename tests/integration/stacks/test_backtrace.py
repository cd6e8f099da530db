"""Stacks with everything that can be asked for: values, tasks, workers, C frames; the job must not notice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.commands import environment, probe
from support.targets import target
from support.waiting import stop, until

from probe_agent import inject
from probe_agent.errors import NoAnswer
from probe_agent.inject import native
from probe_agent.procfs import Process

#: Sums a matrix product bit for bit, and counts what its system calls say; the same in every run.
COMPUTES = """
import hashlib, select, sys, time, numpy
print("ready", flush=True)
weights = numpy.random.default_rng(0).standard_normal((96, 96), dtype="float32")
digest, late = hashlib.sha256(), 0
for step in range(200):
    weights = weights @ weights.T
    weights /= numpy.abs(weights).max()
    digest.update(weights.tobytes())
    began = time.monotonic()
    assert select.select([], [], [], 0.005) == ([], [], [])
    late += time.monotonic() - began < 0.005
print(digest.hexdigest(), late)
"""
#: Waits for an RLock that its thread `keeper` holds.
WAITS = """
import threading, time
class Writer:
    def __init__(self):
        self.lock = threading.RLock()
    def save(self):
        with self.lock:
            pass
def keep():
    with writer.lock:
        held.set()
        time.sleep(600)
writer, held = Writer(), threading.Event()
threading.Thread(target=keep, name="keeper", daemon=True).start()
held.wait()
print("ready", flush=True)
writer.save()
"""
PYTHONS = [
    path
    for path in sorted(Path("/root/.pyenv/versions").glob("3.*/bin/python") if os.access("/root", os.X_OK) else ())
    if 9 <= int(path.parts[-3].split(".")[1]) <= 13
]
needs_pystack = pytest.mark.skipif(native.find_spec("pystack") is None, reason="pystack is not installed")


@pytest.fixture(scope="module")
def job() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, *target("many_stacks.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        assert probe(str(process.pid), "inject").returncode == 0
        yield process
        output, errors = process.communicate("", timeout=30)
        assert (output, errors, process.returncode) == ("asked []\n", "", 0), "no code of the job ran"


def ask(job: subprocess.Popen[str], *options: str) -> Any:
    done = probe(str(job.pid), "backtrace", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def values_of(answer: Any) -> dict[str, str]:
    (frame,) = (frame for frame in answer["threads"][0]["frames"] if frame["func"] == "train")
    found: dict[str, str] = frame["locals"]
    return found


def test_local_variables_are_shown_shortened_and_without_secrets(job: subprocess.Popen[str]) -> None:
    answer = ask(job, "--locals")
    plain = ask(job)
    sql = f"SELECT text FROM probe.audit WHERE action = 'backtrace' AND pid = {job.pid}"
    rows = json.loads(probe(str(job.pid), "query", "--format", "json", sql).stdout)

    values = values_of(answer)
    assert values["steps"] == "3"
    assert values["learning_rate"] == "0.25"
    assert values["weights"] == "ndarray(64, 32) <f4"
    assert values["private"] == "<Private>"
    assert values["own_list"] == "<OwnList>"
    assert values["nested"] == "[[list of 1]]"
    assert values["text"].endswith("… of 5000")
    assert len(values["text"]) < 100
    assert values["api_token"] == "***"
    assert values["words"] == "['--steps', '7', '--api-key', ***]"
    assert "hunter2" not in json.dumps(answer)
    assert ["locals=True" in row["text"] for row in rows] == [True], "who looks at values is in the audit log"
    assert "sys" not in answer["threads"][0]["frames"][-1]["locals"], "modules only repeat the source"
    assert all(frame["locals"] is None for frame in plain["threads"][0]["frames"])


@pytest.mark.parametrize(
    ("kind", "shown"), [("RLock", "<RLock held by thread keeper \\(\\d+\\)>"), ("Lock", "<lock 0x[0-9a-f]+, locked>")]
)
def test_a_lock_is_shown_and_hang_tells_the_thread_that_holds_it(tmp_path: Path, kind: str, shown: str) -> None:
    (tmp_path / "waits.py").write_text(WAITS.replace("RLock", kind))
    command = [sys.executable, str(tmp_path / "waits.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "ready\n"
        answer = ask(waiting, "--locals")
        told = probe(str(waiting.pid), "hang")
        waiting.kill()

    assert re.fullmatch(shown, answer["threads"][0]["frames"][0]["locals"]["self.lock"])
    assert "self.lock is held by its thread keeper, which sleeps in keep" in told.stdout


def test_local_variables_read_from_outside_have_no_secrets_either(job: subprocess.Popen[str]) -> None:
    threads = inject.read_stacks(job.pid, with_locals=True)

    (values,) = (frame.locals for frame in threads[0].frames if frame.func == "train" and frame.locals is not None)
    assert (values["steps"], values["learning_rate"], values["api_token"]) == ("3", "0.25", "***")
    assert "hunter2" not in repr(threads)


def test_tasks_are_stacks_with_what_they_await(job: subprocess.Popen[str]) -> None:
    tasks = {task["name"]: task for task in ask(job, "--tasks")["tasks"]}

    assert set(tasks) >= {"collector", "producer 0", "producer 1"}
    producer, collector = tasks["producer 0"], tasks["collector"]
    assert [frame["func"].rpartition(".")[2] for frame in producer["frames"]] == ["get", "produce"]
    assert producer["frames"][1]["source"] == "await queue.get()"
    assert producer["awaits"] == "Future"
    assert collector["awaits"] == "2 tasks"
    assert [task["awaits"] for task in tasks.values()].count("task collector") == 1, "the main task"


def test_workers_are_shown_with_their_stacks(job: subprocess.Popen[str]) -> None:
    (worker,) = ask(job, "--workers")["workers"]

    assert worker["kind"] == "fork"
    assert worker["threads"][0]["state"] == "sleeping"
    assert any(frame["file"].endswith("many_stacks.py") for frame in worker["threads"][0]["frames"])


@needs_pystack
def test_native_frames_stand_between_those_of_python(job: subprocess.Popen[str]) -> None:
    for _ in range(3):  # a busy machine may not have let it go back to its wait in C yet
        answer = ask(job, "--native", "--all")
        if answer["threads"][0]["frames"][0]["frame_type"] == "native":
            break
    shown = probe(str(job.pid), "backtrace", "--native", "--locals", "--tasks", "--workers")

    main = answer["threads"][0]
    kinds = [frame["frame_type"] for frame in main["frames"]]
    names = [frame["func"] for frame in main["frames"]]
    assert main["is_main"]
    assert kinds[0] == "native", f"it waits in C: {answer['notes']} {main['frames']}"
    assert any(name.endswith("read") for name in names[: kinds.index("python")])
    assert names.index("train") < names.index("<module>")
    assert any("stood still for " in note for note in answer["notes"])
    assert [thread["thread"] for thread in answer["threads"] if thread["is_probe"]] == ["probe"] * sum(
        thread["is_probe"] for thread in answer["threads"]
    )
    assert shown.returncode == 0, shown.stderr
    assert "learning_rate = 0.25" in shown.stdout, "values stay at their frames"
    assert "asyncio producer 0, awaits Future" in shown.stdout
    assert "(fork): thread " in shown.stdout


@needs_pystack
@pytest.mark.situation(
    "its C frames are read", "it stands still for some tenths of a second; numbers and system calls as without"
)
def test_a_job_whose_native_frames_are_read_computes_the_same() -> None:
    command = [sys.executable, "-c", COMPUTES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as alone:
        expected = alone.communicate(timeout=60)[0]
    num_read = 0

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        done = threading.Thread(target=process.wait)
        done.start()
        while done.is_alive():
            with suppress(NoAnswer):  # it has ended
                num_read += bool(inject.read_native_stacks(process.pid, all_threads=True).threads)
        output = process.stdout.read()

    assert num_read > 0
    assert "ready\n" + output == expected
    assert expected.endswith(" 0\n")


@needs_pystack
@pytest.mark.situation("the reader of its C frames is killed", "it goes on")
@pytest.mark.parametrize("num_times", [10, pytest.param(200, marks=pytest.mark.long)])
def test_a_reader_that_is_killed_leaves_no_job_stopped(
    job: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, num_times: int
) -> None:
    process = Process(job.pid)

    for at in range(num_times):
        monkeypatch.setattr(native, "LIMIT_S", 0.05 + 0.15 * at / num_times)
        with suppress(NoAnswer):
            inject.read_native_stacks(job.pid, all_threads=True)
        until(lambda: {process.stat_now(tid).letter for tid in process.threads()} <= {"S", "R"})


@pytest.mark.situation("it is stopped, and has no recorder", "stacks from outside, C frames too; it stays stopped")
def test_a_stopped_process_shows_its_stacks_and_stays_stopped() -> None:
    command = [sys.executable, "-c", "import time\nprint('ready', flush=True)\ntime.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        stop(process.pid)

        shown = probe(str(process.pid), "backtrace", "--native", "--json")

        assert Process(process.pid).stat_now().letter == "T"
        process.kill()
    assert shown.returncode == 0, shown.stderr
    (thread,) = json.loads(shown.stdout)["threads"]
    assert thread["state"] == "stopped"
    assert [frame["lineno"] in (2, 3) for frame in thread["frames"] if frame["func"] == "<module>"] == [True]
    assert "its state is T (stopped)" in shown.stderr


@pytest.mark.situation("its main thread runs exit handlers", "stacks of the handler, from inside and from outside")
def test_an_exit_handler_that_hangs_is_shown() -> None:
    code = "import atexit, time\ndef hang():\n    print('ready', flush=True)\n    time.sleep(60)\natexit.register(hang)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        outside = probe("--no-inject", str(process.pid), "backtrace", "--json")
        inside = probe(str(process.pid), "backtrace", "--json")

        process.kill()
    for shown in (outside, inside):
        main = json.loads(shown.stdout)["threads"][0]
        assert main["is_main"]
        assert [(frame["func"], frame["lineno"] in (3, 4)) for frame in main["frames"]] == [("hang", True)]
    assert json.loads(inside.stdout)["source"] == "recorder"


def test_greenlets_are_stacks_too() -> None:
    pytest.importorskip("gevent")
    code = """
import gevent
def wait():
    print("ready", flush=True)
    gevent.sleep(60)
gevent.spawn(wait)
gevent.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        shown = probe(str(process.pid), "backtrace", "--tasks", "--json")

        process.kill()
    tasks = json.loads(shown.stdout)["tasks"]
    assert {"wait", "<module>"} <= {frame["func"] for task in tasks for frame in task["frames"]}


@needs_pystack
@pytest.mark.long
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_every_python_shows_all_of_it(python: Path) -> None:
    command = [str(python), "-W", "ignore", *target("many_stacks.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()) as job:
        assert job.stdout is not None
        assert job.stdout.readline().startswith("ready ")

        answer = ask(job, "--native", "--locals", "--tasks", "--workers")
        output, _ = job.communicate("", timeout=30)

    assert values_of(answer)["learning_rate"] == "0.25"
    assert {"collector", "producer 0"} <= {task["name"] for task in answer["tasks"]}
    assert answer["threads"][0]["frames"][0]["frame_type"] == "native"
    assert len(answer["workers"]) == 1
    assert output == "asked []\n"
