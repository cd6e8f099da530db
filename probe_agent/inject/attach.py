"""Attach: look first, put the payload in place, deliver the lines that load it, wait for the recorder's answer.

Runs in the attaching process. One thread of the target stands still for about 0.1 ms (see `delivery`).
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

from . import handshake, payload, preflight
from .delivery import HOW, deliver, doing, late
from .folder import folders, is_held, names, remove
from .gil_watch import GilWatch
from .lock import lock
from .threads import code_caves
from .threads.borrow import Sent
from .threads.tracee import Tracee

__all__ = ["Attached", "attach"]

#: How long a recorder may take to start without a sign of it, and how long a folder may be empty.
STARTING_S = 5.0
EMPTY_S = 0.3
#: For the borrowed thread to leave: as long as it needs to get 2 ms of a CPU.
LEAVE_S = 0.05


@dataclass(frozen=True)
class Attached:
    """A recorder that answers: how it got in, its folder as the target sees it, and its answer to hello."""

    pid: int
    how: str
    folder: Path
    hello: dict[str, Any]
    stopped_s: float
    already: bool


def attach(pid: int, *, timeout_s: float = 10.0, recorder: Path | None = None, risk_seccomp: bool = False) -> Attached:
    """Put the recorder into process `pid` and wait until it answers; leave one that is there already alone.

    With `risk_seccomp`, a seccomp filter that may kill the process is ignored. Raises AttachRefused with cause and
    remedy; then the target is as it was, or (AttachDelayed) the agent will start later.
    """
    deadline = monotonic() + timeout_s
    process = Tracee(pid)
    preflight.require(process)
    try:
        with lock(process, timeout_s):
            return _attach(process, deadline, recorder, risk_seccomp)
    except (AttachRefused, OSError) as error:
        if process.has_ended():
            raise AttachRefused(f"pid {pid} ended during the attach", "see the processes here: probe list") from None
        if isinstance(error, AttachRefused):
            raise
        raise AttachRefused(
            f"cannot attach to pid {pid}: {error.strerror or error}",
            f"see what may stop it: probe doctor {pid}",
        ) from error


def _attach(process: Tracee, deadline: float, recorder: Path | None, risk_seccomp: bool) -> Attached:
    there = handshake.running(process) or _starting(process, deadline)
    if there is not None:
        return Attached(process.pid, str(there[1]["how"]), there[0], there[1], 0.0, already=True)
    if not risk_seccomp:
        preflight.require_calls(process)
    with _audited(process.pid, "--risk-seccomp" if risk_seccomp else "") as outcome:
        attached = _put_in(process, deadline, recorder, risk_seccomp)
        outcome.append(f"done: {attached.how}, a thread stopped for {attached.stopped_s * 1e3:.2g} ms")
        return attached


@contextmanager
def _audited(pid: int, text: str) -> Iterator[list[str]]:
    """Audit the attach, and at its end the outcome: what is put into the list, or the error."""
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
        deliver(process, folder, sent)
    except AttachDelayed:
        raise
    except BaseException:  # Ctrl-C too
        payload.take_back(process, folder)
        raise
    watch = GilWatch(process)
    answer = handshake.wait_for_hello(process, folder, deadline, watch.is_kept)
    if answer is None:
        raise _no_answer(process, folder, watch.holder)
    for cave in code_caves.find_caves(process):  # those of earlier attaches too
        cave.clean_when_left(process, LEAVE_S)
    stopped_s = max((one.stopped_s for one in sent), default=0.0)
    return Attached(process.pid, str(answer["how"]), folder, answer, stopped_s, already=not sent)


def _starting(process: Tracee, deadline: float) -> tuple[Path, dict[str, Any]] | None:
    """Wait for a recorder that is starting already; None if there is none."""
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
    """Return the folder of an earlier attach whose code still waits for the interpreter; None if there is none."""
    known = code_caves.find_caves(process)
    if any(code_caves.is_queued(process, known, way) for way in HOW):
        return next((folder for folder in folders(process) if handshake.is_waiting(process, folder)), None)
    return None


def _no_answer(process: Tracee, folder: Path, holder: ThreadStack | None) -> AttachRefused:
    text = handshake.failure(process, folder)
    if text is None and holder is not None:
        return late(process, holder, "")
    if text is None:
        return AttachDelayed(
            f"the agent is in pid {process.pid}, but does not answer yet: {doing(process)}",
            f"wait, then read its stacks: probe {process.pid} backtrace",
        )
    remove(process, folder)
    return AttachRefused(
        f"the agent cannot run in pid {process.pid}: {text.strip().splitlines()[-1]}",
        "check the target's limits (file descriptors, threads, memory); if they are not the cause, report this as a"
        " bug of Probe. The target runs on as before. Its traceback:\n" + text,
    )
