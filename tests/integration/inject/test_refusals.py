"""Processes that cannot be attached to are refused within two seconds, with cause and remedy, and stay as they were."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from threading import Timer

import pytest
from support.waiting import stop, until

from probe_agent import inject
from probe_agent.errors import AttachRefused
from probe_agent.inject.threads.ptrace import Seized
from probe_agent.inject.threads.tracee import Tracee

from .conftest import Target, detach, in_child, situation, state
from .programs import program, refused, unshare


@pytest.mark.situation("no such process", "refused")
def test_a_process_that_does_not_exist() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()

    with refused(gone.pid, "no such process", "probe list"):
        pass


@pytest.mark.situation("the number of a thread", "refused; its process is named")
def test_a_thread_that_is_no_process(start: Callable[..., Target]) -> None:
    target = start("without_gil", seconds=2.0)
    thread = next(int(tid) for tid in os.listdir(f"/proc/{target.pid}/task") if int(tid) != target.pid)

    with refused(thread, f"a thread of process {target.pid}", f"probe {target.pid} inject"):
        pass


@pytest.mark.situation("not Python", "refused")
def test_a_program_that_is_not_python() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        until(lambda: Path(f"/proc/{other.pid}/comm").read_text() == "sleep\n")

        with refused(other.pid, "it is not Python", "probe list"):
            pass

        assert other.poll() is None
        other.kill()


@pytest.mark.situation("a zombie", "refused")
def test_a_zombie() -> None:
    child = subprocess.Popen(["true"])
    until(lambda: state(child.pid) == "Z")

    with refused(child.pid, "Z (zombie)", "it has ended"):
        pass

    assert child.wait() == 0


@pytest.mark.situation("stopped by SIGSTOP", "refused, and stays stopped; works after SIGCONT")
def test_a_stopped_process_stays_stopped(start: Callable[..., Target]) -> None:
    target = start("spin")
    stop(target.pid)

    with refused(target.pid, "T (stopped)", f"kill -CONT {target.pid}"):
        pass

    assert state(target.pid) == "T"
    os.kill(target.pid, signal.SIGCONT)
    detach(inject.attach(target.pid))
    assert target.finish()["result"]


@pytest.mark.situation("traced by another process", "refused; the tracer is named")
def test_a_process_that_a_debugger_traces(start: Callable[..., Target]) -> None:
    target = start("spin")
    debugger = in_child(lambda: (trace(target.pid), signal.pause()))
    until(lambda: f"TracerPid:\t{debugger}" in Path(f"/proc/{target.pid}/status").read_text())

    with refused(target.pid, f"process {debugger} traces it", "end that debugger"):
        pass

    os.kill(debugger, signal.SIGKILL)
    os.waitpid(debugger, 0)
    assert target.finish()["result"]


def trace(pid: int) -> None:
    """PTRACE_SEIZE: how strace begins."""
    assert ctypes.CDLL(None).ptrace(0x4206, pid, None, None) == 0


@pytest.mark.situation("another user's, without CAP_SYS_PTRACE", "refused")
def test_another_users_process_without_the_capability(start: Callable[..., Target], tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    target = start("spin")

    def as_nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)
        with refused(target.pid, "it belongs to uid 0, we are uid 65534", "CAP_SYS_PTRACE"):
            pass

    _, status = os.waitpid(in_child(as_nobody), 0)

    assert status == 0
    assert target.finish()["result"]


@pytest.mark.situation("made itself unreadable (PR_SET_DUMPABLE)", "refused")
def test_a_process_that_closed_itself_to_its_own_user(tmp_path: Path) -> None:
    if os.getuid() != 0 or not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("needs root, to become a user without rights")
    code = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0); print('ready', flush=True); time.sleep(60)"
    command = ["/usr/bin/python3", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, user=65534, group=65534) as closed:
        assert closed.stdout is not None
        assert closed.stdout.readline() == b"ready\n"

        def as_nobody() -> None:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with refused(closed.pid, "PR_SET_DUMPABLE", "run as root"):
                pass

        _, status = os.waitpid(in_child(as_nobody), 0)
        closed.kill()

    assert status == 0


@pytest.mark.situation("it ends during the attach", "refused")
def test_a_process_that_ends_while_it_is_looked_at(start: Callable[..., Target]) -> None:
    answers = set()

    for _ in range(10):
        with subprocess.Popen([sys.executable, "-c", "print('ready', flush=True)"], stdout=subprocess.PIPE) as ending:
            assert ending.stdout is not None
            ending.stdout.readline()
            try:
                inject.attach(ending.pid)
            except AttachRefused as refusal:
                answers.add(refusal.hint)

    assert answers


def test_memory_read_while_its_process_is_killed_is_whole_or_the_process_has_ended() -> None:
    """Between opening a process's memory and reading it, the kernel may have taken the memory away."""
    for _ in range(40):
        child = in_child(signal.pause)
        process = Tracee(child)
        at = stack(process)
        killer = Timer(0.002, os.kill, (child, signal.SIGKILL))
        killer.start()
        with pytest.raises((FileNotFoundError, ProcessLookupError)):
            all(len(process.read_memory(at, 40)) == 40 for _ in repeat(None))
        killer.join()
        os.waitpid(child, 0)


def test_memory_that_was_opened_before_its_process_ended_has_ended() -> None:
    child = in_child(signal.pause)
    at = stack(Tracee(child))
    thread = Seized(child, os.open(f"/proc/{child}/mem", os.O_RDWR))
    assert len(thread.read(at, 8)) == 8
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    with pytest.raises(ProcessLookupError):
        thread.read(at, 8)
    with pytest.raises(ProcessLookupError):
        thread.write(at, bytes(8))


def stack(process: Tracee) -> int:
    """Return where a process has memory as long as it lives."""
    return next(mapping for mapping in process.maps if mapping.path == "[stack]").end - 64


def test_threads_that_end_while_a_process_is_examined_are_no_failure(tmp_path: Path) -> None:
    code = "import threading\nprint('ready', flush=True)\nwhile True: threading.Thread(target=int).start()"
    with program(code) as busy:
        for _ in range(30):
            assert [check.saw for check in inject.examine(busy.pid) if check.name == "threads"]


@pytest.mark.situation("mount, PID and network namespaces of its own (a container)", "works")
def test_a_container_with_its_own_mounts_processes_and_network_works(tmp_path: Path) -> None:
    prefix = (
        *unshare("--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"),
        *("sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"),
    )
    with situation("spin", tmp_path, prefix=prefix) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        pid = int(children.read_text().split()[0])

        seen = {check.name: check for check in inject.examine(pid)}
        attached = inject.attach(pid)
        is_outside = attached.folder.exists()
        detach(attached)

    assert attached.hello["pid"] == 1
    assert attached.hello["host_pid"] == pid
    assert not is_outside
    assert all(check.ok for check in seen.values())
    assert "mnt, pid, net" in seen["namespaces"].saw
    assert "it calls itself 1" in seen["namespaces"].saw


@pytest.mark.situation("no writable /dev/shm and /tmp", "refused")
def test_a_target_without_a_writable_folder(tmp_path: Path) -> None:
    # /tmp stays what it is, but for writing: the checkout may lie in it.
    read_only = 'for at in /dev/shm /tmp; do mount --bind $at $at && mount -o remount,bind,ro $at; done; exec "$@"'
    prefix = (
        *unshare("--mount", "--fork", "--kill-child"),
        *("sh", "-c", read_only, "sh"),
    )
    with situation("sleep", tmp_path, prefix=prefix, seconds=30.0) as outer:
        pid = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])

        with refused(pid, "/dev/shm: not writable", "--shm-size"):
            pass
