"""Gets the recorder into a running process, by the way that suits what its threads are doing.

    pending call   the main thread comes back to the interpreter: it is made to call Py_AddPendingCall, and CPython
                   runs the code at its next safe point
    quiet thread   the main thread is blocked: a thread asleep in a plain wait is borrowed for one pthread_create

Runs in the attaching process. One thread of the target stands still for some 0.1 ms.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from probe_agent import audit
from probe_agent.errors import AttachDelayed, AttachRefused, ProbeError
from probe_agent.wire import ThreadStack

from . import handshake, payload, py_spy
from .folder import folders, is_held, names, remove
from .gil_watch import GilWatch
from .lock import lock
from .preflight import checks
from .threads import code_caves
from .threads.borrow import Sent, send
from .threads.machine import machine
from .threads.mailbox import INTERRUPTED, PENDING_CALL, QUIET_THREAD
from .threads.tracee import ThreadLook, Tracee

__all__ = ["Attached", "attach"]

HOW = {PENDING_CALL: "pending call", QUIET_THREAD: "quiet thread"}
#: Between two looks at a thread, to tell one that sleeps from one that works with short naps.
LOOK_APART_S = 0.02
#: A main thread that has not come back to the interpreter by then is taken for blocked.
PENDING_CALL_S = 0.5
#: The answer to whoever attaches comes by then, even when the agent itself has to wait for the GIL. It comes sooner
#: when a C call is seen to keep it.
TAKEN_S = 1.8
#: How long a recorder that has begun to start is left to it, when nothing of it is to be seen.
STARTING_S = 5.0
EMPTY_S = 0.3
#: To see the borrowed thread leave; it takes about as long as the thread needs to get 2 ms of a processor.
LEAVE_S = 0.05


@dataclass(frozen=True)
class Attached:
    """A recorder that answers: how it got in, its folder as the target sees it, and what it says of itself."""

    pid: int
    how: str
    folder: Path
    hello: dict[str, Any]
    stopped_s: float
    already: bool


def attach(pid: int, *, timeout_s: float = 10.0, recorder: Path | None = None, risk_seccomp: bool = False) -> Attached:
    """Put the recorder into process `pid` and wait until it answers. One that is there already is left alone.

    With `risk_seccomp` a seccomp filter that may kill the process is not looked at. Raises AttachRefused, with cause
    and remedy, when it cannot be done; then the target is as it was, unless the message says that the agent will start
    later.
    """
    deadline = monotonic() + timeout_s
    process = Tracee(pid)
    checks.require(process)
    try:
        with lock(process, timeout_s):
            return _attach(process, deadline, recorder, risk_seccomp)
    except (AttachRefused, OSError) as error:
        if process.has_ended():
            raise AttachRefused(f"pid {pid} has ended while we attached", "probe list shows what runs") from None
        if isinstance(error, AttachRefused):
            raise
        raise AttachRefused(
            f"cannot attach to pid {pid}: {error.strerror or error}",
            f"probe doctor {pid} says what may be in the way",
        ) from error


def _attach(process: Tracee, deadline: float, recorder: Path | None, risk_seccomp: bool) -> Attached:
    there = handshake.running(process) or _starting(process, deadline)
    if there is not None:
        return Attached(process.pid, str(there[1]["how"]), there[0], there[1], 0.0, already=True)
    if not risk_seccomp:
        checks.require_calls(process)
    with _audited(process.pid, "--risk-seccomp" if risk_seccomp else "") as outcome:
        attached = _put_in(process, deadline, recorder, risk_seccomp)
        outcome.append(f"done: {attached.how}, a thread stopped for {attached.stopped_s * 1e3:.2g} ms")
        return attached


@contextmanager
def _audited(pid: int, text: str) -> Iterator[list[str]]:
    """Write down that an attach begins, and in the end what came of it: what is put into the list, or the error."""
    target = {"host": os.uname().nodename, "pid": pid}
    peer = f"uid {os.geteuid()} pid {os.getpid()}"
    number = audit.begin(audit.Action(peer, "control", "inject", text, target))
    outcome: list[str] = []
    try:
        yield outcome
    except ProbeError as error:
        outcome.append(f"{'delayed' if isinstance(error, AttachDelayed) else 'failed'}: {error.message}")
        raise
    except BaseException as error:
        outcome.append(f"failed: {error!r}")
        raise
    finally:
        audit.end(number, outcome[-1])


def _put_in(process: Tracee, deadline: float, recorder: Path | None, risk_seccomp: bool) -> Attached:
    try:
        folder = _waiting(process) or payload.place(process, recorder)
    except payload.Begun:
        return _attach(process, deadline, recorder, risk_seccomp)
    sent: list[Sent] = []
    try:
        _send_all(process, folder, sent, monotonic() + TAKEN_S)
    except AttachDelayed:
        raise
    except BaseException:  # Ctrl-C too
        payload.take_back(process, folder)
        raise
    watch = GilWatch(process)
    answer = handshake.wait_for_hello(process, folder, deadline, watch.is_kept)
    if answer is None:
        raise _no_answer(process, folder, watch.holder)
    for place in code_caves.find_caves(process):  # what attachers before us have left, too
        place.clean_when_left(process, LEAVE_S)
    stopped_s = max((one.stopped_s for one in sent), default=0.0)
    return Attached(process.pid, str(answer["how"]), folder, answer, stopped_s, already=not sent)


def _starting(process: Tracee, deadline: float) -> tuple[Path, dict[str, Any]] | None:
    """The recorder that is just starting without us, once it answers; None when none is."""
    until = min(deadline, monotonic() + STARTING_S)
    until_it_has_something = monotonic() + EMPTY_S  # a planned start may just have made the folder
    for folder in folders(process):
        while names(process, folder) is not None and not handshake.is_waiting(process, folder):
            answer = handshake.hello(process, folder)
            if answer is not None:
                return folder, answer
            has_begun = handshake.has_begun(process, folder)
            if (
                handshake.failure(process, folder) is not None
                or (has_begun and monotonic() > until)
                or (not has_begun and monotonic() > until_it_has_something)
            ):
                if is_held(process, folder):
                    raise AttachRefused(
                        f"the agent is in pid {process.pid} already, but does not listen", "wait, then try again"
                    )
                remove(process, folder)  # a leftover
            sleep(0.01)
    return None


def _waiting(process: Tracee) -> Path | None:
    """The folder of an attach that the target has been told of but has not come to: it needs no second one."""
    known = code_caves.find_caves(process)
    if any(code_caves.is_queued(process, known, way) for way in HOW):
        return next((folder for folder in folders(process) if handshake.is_waiting(process, folder)), None)
    return None


def _no_answer(process: Tracee, folder: Path, holder: ThreadStack | None) -> AttachRefused:
    text = handshake.failure(process, folder)
    if text is None and holder is not None:
        return _late(process, holder, "")
    if text is None:
        return AttachDelayed(
            f"pid {process.pid} has taken the agent, but it does not answer yet: {_doing(process)}",
            f"wait, then ask it: probe {process.pid} backtrace",
        )
    remove(process, folder)
    return AttachRefused(
        f"the agent cannot run in pid {process.pid}: {text.strip().splitlines()[-1]}",
        "the target goes on as before. If this is no limit of the target (file descriptors, threads, memory), it is"
        " a fault of Probe. What it said:\n" + text,
    )


def _send_all(process: Tracee, folder: Path, sent: list[Sent], deadline: float) -> None:
    """Send threads until the target has taken the payload. Raises AttachRefused when none could be sent."""
    main = _look(process, process.pid)
    quiet = [] if main is not None and main.state == "R" else _quiet_threads(process)
    # A main thread that was asleep may have woken up when we come to borrow a thread.
    ways = [QUIET_THREAD, PENDING_CALL] if process.pid in quiet else [PENDING_CALL, QUIET_THREAD]
    complaints = []
    is_queued = False
    taking = _Taking(process, folder, sent)
    for way in ways:
        if way == QUIET_THREAD and (sent or not quiet):
            quiet = _quiet_threads(process)
        tid = process.pid if way == PENDING_CALL else next(iter(quiet), None)
        known = code_caves.find_caves(process)
        if code_caves.is_queued(process, known, way):
            is_queued = True  # by an attach before this one
        elif tid is not None:
            place, text = code_caves.find_free(process, known), payload.lines(process, folder, HOW[way])
            try:
                one = send(process, tid, way, place, text)
            except AttachRefused as refused:
                if way == ways[-1] and not is_queued:
                    raise
                complaints.append(refused.message)
                continue
            sent.append(one)
            if one.complaint:
                complaints.append(one.complaint)
                continue
            is_queued = True
        if not is_queued:
            continue
        is_last = way in (QUIET_THREAD, ways[-1])
        if taking.wait(deadline if is_last else min(deadline, monotonic() + PENDING_CALL_S)):
            return
        if taking.is_interrupted() and monotonic() < deadline:
            return _send_all(process, folder, sent, deadline)
        if is_last:
            break  # the new thread waits for the GIL, and so would a pending call
    if not is_queued:
        causes = "; ".join(dict.fromkeys(complaints)) or "none of its threads can be borrowed"
        raise AttachRefused(
            f"cannot attach to pid {process.pid}: {causes}",
            "try again; when that does not help, start the job with the agent: PROBE=1",
        )
    if taking.has_run():
        raise AttachRefused(
            f"cannot attach to pid {process.pid}: its interpreter ran our lines, but the agent has not begun to load",
            "an audit hook of the job may forbid it (sys.addaudithook), or a C call holds the GIL: try again",
        )
    raise _late(process, taking.watch.holder, "" if sent else "an attach is under way already: ")


class _Taking:
    """Waits until the target takes the payload, and sees who holds the GIL meanwhile."""

    def __init__(self, process: Tracee, folder: Path, sent: list[Sent]) -> None:
        self.watch = GilWatch(process)
        self._process, self._folder, self._sent = process, folder, sent
        self._has_run = False

    def wait(self, until: float) -> bool:
        """False when it has not been taken by `until`, or will not be because the GIL is held all the time."""
        while not handshake.wait_taken(
            self._process, self._folder, min(until, self.watch.next_look), self.is_interrupted
        ):
            if monotonic() > until or self.is_interrupted():
                return False
            if self.watch.is_kept() and not self.has_run():
                return False
        return True

    def has_run(self) -> bool:
        """Whether the interpreter has run our lines."""
        self._look()
        return self._has_run

    def is_interrupted(self) -> bool:
        """Whether a signal handler of the job raised while our last lines ran, so that they may have done nothing."""
        return self._look() == INTERRUPTED

    def _look(self) -> int:
        """What our last lines have come to. Noted at once: when they have run, a nudge may take their place."""
        ran = [one.place.said(self._process).ran for one in self._sent] or [0]
        self._has_run = self._has_run or any(ran)
        return ran[-1]


def _late(process: Tracee, holder: ThreadStack | None, before: str) -> AttachDelayed:
    """The code waits for the interpreter."""
    if holder is not None:
        text = f"in pid {process.pid} {py_spy.holder_text(holder)}; the agent will start when it is released"
    else:
        text = (
            f"pid {process.pid} does not come back to the interpreter: {_doing(process)};"
            " the agent will start when it does"
        )
    hint = f"just wait, and look with probe list. Where it is, needs no GIL to see: probe {process.pid} backtrace --all"
    return AttachDelayed(before + text, hint)


def _quiet_threads(process: Tracee) -> list[int]:
    """Threads that may be borrowed because they sleep, the best one first; not the main one if there is another."""
    first = process.looks()
    sleep(LOOK_APART_S)
    suits = {
        tid: rank
        for tid, look in first.items()
        if (rank := machine.suits(look)) is not None and _look(process, tid) == look
    }
    return sorted(suits, key=lambda tid: (suits[tid], tid == process.pid, tid))


def _look(process: Tracee, tid: int) -> ThreadLook | None:
    try:
        return process.look(tid)
    except (FileNotFoundError, ProcessLookupError):
        return None  # the thread has ended since


def _doing(process: Tracee) -> str:
    """What its main thread does, and which threads are running: one of them has the GIL."""
    looks = process.looks()
    main = looks[process.pid]
    where = f" in system call {main.syscall}" if main.syscall is not None else ""
    running = [tid for tid, look in looks.items() if look.state == "R"]
    names = ", ".join(f"{tid} ({process.read(f'task/{tid}/comm').strip()})" for tid in running)
    return f"its main thread is in state {main.state}{where}" + (f"; on the processor: {names}" if names else "")
