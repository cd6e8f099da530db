"""Unusual programs, which an attach must not hurt either."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.waiting import until

from probe_agent import inject
from probe_agent.errors import AttachRefused
from probe_agent.inject.threads import borrow, code_caves
from probe_agent.inject.threads.mailbox import QUIET_THREAD
from probe_agent.inject.threads.tracee import Tracee

from .conftest import detach, is_asleep

Run = Callable[..., subprocess.Popen[str]]
FOREVER = "\nprint('ready', flush=True)\nwhile True: sum(range(100))"


@pytest.fixture
def run() -> Iterator[Run]:
    """Run a Python program until the test is over; it prints `ready` first."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *flags: str, python: str = sys.executable) -> subprocess.Popen[str]:
        command = [python, *flags, "-c", code]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def complaints(process: subprocess.Popen[str]) -> str:
    """Kill it; return what it wrote to its stderr, or how it ended."""
    ended = process.poll()
    process.kill()
    return process.communicate()[1] + ("" if ended is None else f"it ended with {ended}")


@pytest.mark.situation(
    "an audit hook of its own forbids what the recorder needs",
    "refused; the hook's veto does not reach the job",
)
@pytest.mark.parametrize("event", ["compile", "exec", "_thread.start_new_thread", "open", "import"])
def test_an_audit_hook_that_forbids_what_we_do_keeps_its_job(run: Run, event: str) -> None:
    process = run(f"import sys\ndef forbid(event, args):\n if event == {event!r}: raise ValueError\n"
                  "sys.addaudithook(forbid)" + FOREVER)  # fmt: skip

    try:
        detach(inject.attach(process.pid))
        said = ""
    except AttachRefused as refused:
        said = refused.message + refused.hint
    folders = list(Path(f"/dev/shm/probe-{os.getuid()}").glob(f"{process.pid}-*"))

    assert complaints(process) == ""
    assert "audit hook" in said or "ValueError" in said
    assert folders == []


@pytest.mark.situation("all warnings are errors", "works, without a warning")
def test_a_program_with_names_of_ours_and_all_warnings_as_errors(run: Run) -> None:
    process = run("import builtins\nexec = open = os = _thread = F = None" + FOREVER, "-X", "dev", "-W", "error")

    detach(inject.attach(process.pid))

    assert complaints(process) == ""


@pytest.mark.situation("the file of its interpreter was deleted", "works for root")
def test_a_program_whose_interpreter_was_deleted_meanwhile(run: Run, tmp_path: Path) -> None:
    static = "/usr/bin/python3"
    if os.geteuid() != 0 or not os.access(static, os.X_OK):
        pytest.skip("only root can read a file that is gone")
    python = tmp_path / "python3"
    shutil.copy(static, python)
    process = run(FOREVER, python=str(python))
    python.unlink()

    detach(inject.attach(process.pid))

    assert complaints(process) == ""


@pytest.mark.situation("a forked child of a target", "not a target; gets its own agent when attached to")
def test_a_forked_child_of_a_program_with_the_agent_gets_its_own(run: Run) -> None:
    process = run("import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: os.fork())" + FOREVER)
    parents = inject.attach(process.pid)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    process.send_signal(signal.SIGUSR1)
    until(lambda: children.read_text() != "")
    child = int(children.read_text())

    try:
        childs = inject.attach(child)
        detach(childs)
    finally:
        os.kill(child, signal.SIGKILL)
    detach(parents)

    assert not childs.already
    assert childs.hello["host_pid"] == child


@pytest.mark.situation("a target replaced itself by exec", "not a target any more; works again")
def test_a_program_that_replaced_itself_by_another_gets_a_new_agent(run: Run) -> None:
    again = f"os.execv(sys.executable, [sys.executable, '-c', {FOREVER!r}])"
    process = run(f"import os, sys, signal\nsignal.signal(signal.SIGUSR1, lambda *_: {again})" + FOREVER)
    inject.attach(process.pid)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    attached = inject.attach(process.pid)
    detach(attached)

    assert not attached.already


FILL_A_PIPE = """
there = os.pipe()[1]
os.set_blocking(there, False)
try:
    while True: os.write(there, bytes(4096))
except BlockingIOError:
    os.set_blocking(there, True)
"""
#: What is done before and after it says that it is ready; the latter does not come back.
WAITS = {
    "write to a full pipe": (FILL_A_PIPE, "os.write(there, b'x')"),
    "accept": ("import socket; server = socket.create_server(('127.0.0.1', 0))", "server.accept()"),
    "flock": ("import fcntl; a, b = os.open('.', 0), os.open('.', 0); fcntl.flock(a, 2)", "fcntl.flock(b, 2)"),
    "pause": ("import signal", "signal.pause()"),
    "sigwait": ("import signal; signal.pthread_sigmask(0, [10])", "signal.sigwait([10])"),
}


@pytest.mark.situation("its only thread is blocked for ever: write, accept, flock, pause, sigwait", "works")
@pytest.mark.parametrize("wait", WAITS)
def test_a_program_whose_only_thread_is_blocked_for_ever(run: Run, tmp_path: Path, wait: str) -> None:
    before, blocks = WAITS[wait]
    process = run(f"import os\nos.chdir({str(tmp_path)!r})\n{before}\nprint('ready', flush=True)\n{blocks}")
    until(lambda: is_asleep(process.pid))

    attached = inject.attach(process.pid)
    detach(attached)

    assert attached.how == "quiet thread"
    assert complaints(process) == ""


def cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def test_a_thread_that_has_woken_up_is_not_borrowed_as_a_quiet_one(run: Run) -> None:
    pid = run(FOREVER).pid
    ready = cpu_ns(pid)
    until(lambda: cpu_ns(pid) > ready + 20_000_000)  # it has left the system call that said so
    process = Tracee(pid)
    place = code_caves.find_free(process, code_caves.find_caves(process))

    with pytest.raises(AttachRefused, match="woken up"):
        borrow.send(process, pid, QUIET_THREAD, place, b"0\0")
    detach(inject.attach(pid))
