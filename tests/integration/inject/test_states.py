"""States in which an attach has to wait, to share, or to give way to another one."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep

import pytest
from support.waiting import until

from probe_agent import inject
from probe_agent.errors import AttachRefused
from probe_agent.inject import payload
from probe_agent.inject.lock import lock
from probe_agent.inject.threads.tracee import Tracee

from .conftest import LEFT_NOTHING, Target, ask, detach, in_child, is_asleep


@pytest.mark.busy_machine("the main thread has to come back to the interpreter while the attach waits for it")
@pytest.mark.situation("its main thread computes in C without the GIL", "attached at once; that thread is not touched")
def test_a_main_thread_in_c_without_the_gil_is_left_alone(start: Callable[..., Target]) -> None:
    target = start("without_gil", seconds=5.0)

    began = monotonic()
    attached = inject.attach(target.pid)
    took_s = monotonic() - began
    detach(attached)

    assert target.is_alive()
    assert attached.how == "quiet thread"
    assert took_s < 4.5  # before it comes back to the interpreter
    assert target.finish()["result"] is True


def test_while_the_gil_is_held_the_agent_is_promised_and_then_comes(start: Callable[..., Target]) -> None:
    target = start("with_gil", seconds=6)
    folder = payload.folders(Tracee(target.pid))[0]

    answers = []
    for _ in range(2):
        began = monotonic()
        with pytest.raises(AttachRefused) as refused:
            inject.attach(target.pid)
        answers.append((monotonic() - began, refused.value.message, refused.value.hint))
    until(lambda: (folder / "target.json").exists() or not target.is_alive(), 30.0)
    how = ask(folder, "hello")["how"] if target.is_alive() else "it ended first"

    assert how in ("pending call", "it ended first")
    if "ended during the attach" in answers[-1][1]:
        del answers[-1]  # on a busy machine
    for took_s, message, hint in answers:
        assert took_s < 5.5  # before the GIL is released
        assert "the agent will start when it is released" in message
        assert "backtrace --all" in hint
    assert all("under way" in message for _, message, _ in answers[1:])


@pytest.mark.situation("two attach at once", "one agent; both get its answer")
def test_two_attaches_at_once_make_one_agent(start: Callable[..., Target]) -> None:
    target = start("spin")

    with ThreadPoolExecutor(2) as both:
        first, second = both.map(inject.attach, [target.pid, target.pid])
    detach(first)
    end = target.finish()

    assert sorted([first.already, second.already]) == [False, True]
    assert first.folder == second.folder
    assert end["left"] == LEFT_NOTHING


@pytest.mark.situation("another attach to it is in progress", "waits for that one, up to its timeout")
def test_an_attach_waits_for_the_one_before_it(start: Callable[..., Target]) -> None:
    target = start("spin")

    with ThreadPoolExecutor(1) as other:
        with lock(Tracee(target.pid), 0.0):
            with pytest.raises(AttachRefused, match="another attach to it is under way"):
                inject.attach(target.pid, timeout_s=0.05)
            attaching = other.submit(inject.attach, target.pid)
            sleep(2.2)  # longer than an attach waits for its target to take the payload
        attached = attaching.result()
    detach(attached)

    assert not attached.already
    assert target.finish()["left"] == LEFT_NOTHING


@pytest.mark.situation("it has the agent", "the same agent answers")
def test_an_attach_to_a_target_that_has_the_agent_changes_nothing(start: Callable[..., Target]) -> None:
    target = start("sleep", seconds=3.0)
    until(lambda: is_asleep(target.pid))
    first = inject.attach(target.pid)

    second = inject.attach(target.pid)

    detach(first)
    assert second.already
    assert second.hello == first.hello


@pytest.mark.situation(
    "the attaching process is killed (SIGKILL) at any instant",
    "it computes on; the next attach works",
)
@pytest.mark.parametrize("name", ["spin", "sleep"])
def test_an_attacher_killed_at_any_instant_does_no_harm(start: Callable[..., Target], name: str) -> None:
    target = start(name, seconds=60.0)
    chance = random.Random(1)

    for _ in range(5):
        child = in_child(lambda: inject.attach(target.pid))
        sleep(chance.uniform(0.0, 0.15))  # the instant is what is tried here
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        detach(inject.attach(target.pid))
        assert target.is_alive()

    if name == "spin":
        assert target.finish()["left"] == LEFT_NOTHING


@pytest.mark.situation("Ctrl-C while the attach waits for the GIL", "nothing happens in the target, then or later")
def test_ctrl_c_while_it_waits_takes_the_payload_back(start: Callable[..., Target]) -> None:
    target = start("with_gil", seconds=3.0)
    folder = payload.folders(Tracee(target.pid))[0]
    child = in_child(lambda: interruptible(target.pid))
    until((folder / payload.PAYLOAD).exists)
    sleep(0.1)  # it is waiting for the interpreter now, or about to, and gives up half a second later

    os.kill(child, signal.SIGINT)
    _, status = os.waitpid(child, 0)
    end = target.finish()

    assert os.waitstatus_to_exitcode(status) == 1
    assert not folder.exists()
    assert end["result"] is None
    assert end["left"] == LEFT_NOTHING


def interruptible(pid: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    inject.attach(pid)


@pytest.mark.situation("no file descriptor left in it", "refused with the cause; works once there are some")
def test_a_target_without_a_free_descriptor_refuses_and_takes_it_later(start: Callable[..., Target]) -> None:
    target = start("no_descriptors")

    with pytest.raises(AttachRefused, match="Too many open files"):
        inject.attach(target.pid)
    folder = payload.folders(Tracee(target.pid))[0]
    was_left = folder.exists()
    target.stop.touch()
    until(lambda: len(os.listdir(f"/proc/{target.pid}/fd")) < 10)
    detach(inject.attach(target.pid))
    target.stop.unlink()
    output, errors = target.process.communicate(timeout=60)

    assert not was_left
    assert json.loads(output.splitlines()[-1])["left"] == LEFT_NOTHING
    assert not errors


@pytest.mark.situation("the interpreter has ended, its process has not", "refused")
def test_a_python_that_is_over_refuses(start: Callable[..., Target]) -> None:
    target = start("finalized")
    assert target.process.stdout is not None
    target.process.stdout.readline()  # all that Python had to say: it goes to exit() now
    until(lambda: Path(f"/proc/{target.pid}/syscall").read_text().startswith("230 "))

    with pytest.raises(AttachRefused, match="or is gone") as refused:
        inject.attach(target.pid)

    assert target.is_alive()
    assert refused.value.message.count("or is gone") == 1
    assert not payload.folders(Tracee(target.pid))[0].exists()


@pytest.mark.situation("another user's, attached by root", "works; the recorder's files belong to that user")
def test_a_target_of_another_user_gets_its_own_folder(start: Callable[..., Target], tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can start one")
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("our own Python may be closed to other users")
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o005 != 0o005 and parent.stat().st_uid == 0 and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    target = start("spin", python="/usr/bin/python3", user=65534, group=65534)

    attached = inject.attach(target.pid)
    owner = attached.folder.stat()
    detach(attached)

    assert (owner.st_uid, owner.st_mode & 0o777) == (65534, 0o700)
    assert attached.hello["uid"] == 65534
