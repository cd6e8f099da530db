"""While a C call holds the GIL: the job and the thread that holds it, read from outside; then the agent starts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commands import Probe, environment
from support.waiting import until

from probe_agent import inject
from probe_agent.targets import TargetDirectory

PROGRAM = Path(__file__).parents[2] / "targets" / "held_gil.py"
#: The call, the thread that makes it, and a function in its stack.
CALLS = {"regex": ("MainThread", "regex"), "pow": ("MainThread", "huge_pow"), "thread": ("holder", "hold")}
SQL = "SELECT func FROM python.backtrace ORDER BY depth"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the job; signals begin and end its call."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def holds_it(job: subprocess.Popen[str], func: str) -> bool:
    """Return whether a thread in `func` holds the GIL."""
    holders = [thread for thread in inject.read_stacks(job.pid) if thread.holds_gil]
    return any(frame.func == func for holder in holders for frame in holder.frames)


def has_agent(job: subprocess.Popen[str]) -> bool:
    return any(target.pid == job.pid for target in TargetDirectory().targets())


def end(job: subprocess.Popen[str]) -> str:
    """Return the job's last output; its stderr is its own."""
    output, errors = job.communicate("enough\n", timeout=60)
    assert errors == ""
    return output


@pytest.mark.situation(
    "the GIL is held by a C call (catastrophic regex, huge pow, a thread in an extension)",
    "stacks from outside, and who holds the GIL, within 2 s; the agent starts when it is released",
)
@pytest.mark.parametrize("call", CALLS)
def test_the_agent_is_promised_with_stacks_from_outside_and_then_starts(start: Start, probe: Probe, call: str) -> None:
    job = start(call, "now")
    pid, (thread, func) = str(job.pid), CALLS[call]
    until(lambda: holds_it(job, func))

    shown = probe(pid, "backtrace", "--json")
    injected = probe(pid, "inject")
    job.send_signal(signal.SIGUSR1)
    until(lambda: has_agent(job))
    after = probe(pid, "backtrace", "--json")
    detached = probe(pid, "detach")

    assert shown.returncode == 0, shown.stderr
    assert f"thread {thread} " in shown.stderr
    assert "the agent will start when it is released" in shown.stderr
    backtrace = json.loads(shown.stdout)
    assert backtrace["source"] == "outside"
    assert [one["thread"] for one in backtrace["threads"] if one["holds_gil"]] == [thread]
    assert backtrace["threads"][0]["is_main"]
    assert any(frame["source"] for frame in backtrace["threads"][0]["frames"])
    assert injected.returncode == 4
    assert "the agent will start when it is released" in injected.stderr
    assert "holds the GIL, tid" in injected.stdout
    assert json.loads(after.stdout)["source"] == "recorder"
    assert "attached" not in after.stderr, "it has started by itself"
    assert detached.returncode == 0, detached.stderr
    assert end(job) == "1\n"


@pytest.mark.situation(
    "it has the agent, and a C call holds the GIL",
    "stacks from outside, and who holds the GIL, within 2 s; the agent answers when it is released",
)
def test_a_job_with_the_agent_is_seen_from_outside_meanwhile(start: Start, probe: Probe) -> None:
    job = start("thread")
    pid, (thread, func) = str(job.pid), CALLS["thread"]
    before = probe(pid, "backtrace", "--json")
    job.send_signal(signal.SIGUSR2)
    until(lambda: holds_it(job, func))

    shown = probe(pid, "backtrace", "--json")
    injected = probe(pid, "inject")
    rows = probe(pid, "query", SQL, "--format", "json")
    job.send_signal(signal.SIGUSR1)
    until(lambda: not holds_it(job, func))
    after = probe(pid, "backtrace", "--json")
    detached = probe(pid, "detach")

    sources = [json.loads(done.stdout)["source"] for done in (before, shown, after)]
    assert sources == ["recorder", "outside", "recorder"]
    assert f"thread {thread} " in json.loads(shown.stdout)["notes"][0]
    (holder,) = (one for one in json.loads(shown.stdout)["threads"] if one["holds_gil"])
    assert holder["thread"] == thread
    assert (holder["state"], holder["syscall"]) == ("sleeping", "read")
    assert injected.returncode == 4
    assert "holds the GIL" in injected.stderr
    assert "holds the GIL, tid" in injected.stdout
    assert json.loads(rows.stdout)[-1] == {"func": "<module>"}
    assert "read from outside" in rows.stderr
    assert detached.returncode == 0, detached.stderr
    assert end(job) == "1\n"


@pytest.mark.situation(
    "it has no agent and may not get one (--no-inject)", "stacks from outside, also in SQL; recorded tables: refused"
)
def test_a_process_without_the_agent_answers_for_its_stacks_only(start: Start, probe: Probe) -> None:
    job = start("thread", "now")
    pid = str(job.pid)
    until(lambda: holds_it(job, "hold"))

    shown = probe("--no-inject", pid, "backtrace")
    rows = probe("--no-inject", pid, "query", SQL, "--format", "json")
    recorded = probe("--no-inject", pid, "query", "SELECT * FROM python.steps")
    job.send_signal(signal.SIGUSR1)

    assert shown.returncode == 0, shown.stderr
    assert "thread holder (holds the GIL" in shown.stdout
    assert f"pid {pid} has no recorder in it: its stacks are read from outside" in shown.stderr
    assert json.loads(rows.stdout)[-1] == {"func": "<module>"}
    assert recorded.returncode == 4, "no rows and no answer must not look alike"
    assert "has no recorder in it" in recorded.stderr
    assert not has_agent(job)
    assert end(job) == "1\n"
