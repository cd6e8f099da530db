"""Delivery of our lines to the interpreter, by the way that suits what the target's threads are doing.

    pending call   the main thread comes back to the interpreter: it is made to call Py_AddPendingCall, and CPython
                   runs the lines at its next safe point
    quiet thread   the main thread is blocked: a thread asleep in a plain wait is borrowed for one pthread_create

`after` says what follows what; it knows nothing of processes:

    LOOK ──▶ TRY a way ──QUEUED──▶ WAIT ──TAKEN──▶ TAKEN
     ▲         │  ▲                 │ │
     │  NOT_SENT  └───NOT_TAKEN─────┘ │   (the other way, if it can help; else LATE)
     │         └─▶ TRY the other way, WAIT, or REFUSED
     └──────────INTERRUPTED───────────┘

Runs in the attaching process. One thread of the target stands still for about 0.1 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from time import monotonic, sleep

from probe_agent.errors import AttachDelayed, AttachRefused
from probe_agent.procfs import ENDED
from probe_agent.wire import ThreadStack

from . import handshake, payload, py_spy
from .gil_watch import GilWatch
from .threads import code_caves
from .threads.borrow import Sent, send
from .threads.machine import machine
from .threads.mailbox import INTERRUPTED, PENDING_CALL, QUIET_THREAD
from .threads.tracee import ThreadLook, Tracee

__all__ = ["HOW", "Event", "Stage", "State", "after", "deliver", "doing", "late"]

HOW = {PENDING_CALL: "pending call", QUIET_THREAD: "quiet thread"}
#: The longest wait for the target to take the payload. It is shorter if a C call is seen to hold the GIL.
TAKEN_S = 1.8
#: Beyond that, for the thread that our lines have started, on a host with more to do than it has processors.
LOADING_S = 10.0
#: A main thread that has not come back to the interpreter after this is taken to be blocked.
PENDING_CALL_S = 0.5
#: Between two looks at a thread, to tell one that sleeps from one that works with short naps.
LOOK_APART_S = 0.02


class Stage(Enum):
    """What the delivery does next; the last three end it."""

    LOOK = auto()  # at the threads, to choose the order of the ways
    TRY = auto()  # to send a thread, this way
    WAIT = auto()  # until the target takes the payload
    TAKEN = auto()
    REFUSED = auto()  # nothing could be sent
    LATE = auto()  # the lines wait for the interpreter, and will run when it can


class Event(Enum):
    """What came of a stage."""

    MAIN_RUNS = auto()  # LOOK: a pending call first
    MAIN_SLEEPS = auto()  # LOOK: a quiet thread first
    QUEUED = auto()  # TRY: the lines wait for the interpreter
    NOT_SENT = auto()  # TRY: no thread could be sent, or its call failed
    TAKEN = auto()  # WAIT
    NOT_TAKEN = auto()  # WAIT
    INTERRUPTED = auto()  # WAIT: a signal handler of the job raised in our lines, which may have done nothing


@dataclass(frozen=True)
class State:
    """How far the delivery is: its stage, the way in use, the way that is left, and whether lines are queued."""

    stage: Stage = Stage.LOOK
    way: int = 0
    left: int = 0
    is_queued: bool = False

    @property
    def is_last_wait(self) -> bool:
        """Whether no other way can help: a new thread waits for the GIL, and so would a pending call."""
        return self.way == QUIET_THREAD or not self.left


def after(state: State, event: Event) -> State:
    """Return the state that follows."""
    match state.stage, event:
        case Stage.LOOK, Event.MAIN_RUNS:
            return State(Stage.TRY, PENDING_CALL, QUIET_THREAD)
        case Stage.LOOK, Event.MAIN_SLEEPS:
            return State(Stage.TRY, QUIET_THREAD, PENDING_CALL)
        case Stage.TRY, Event.QUEUED:
            return replace(state, stage=Stage.WAIT, is_queued=True)
        case Stage.TRY, Event.NOT_SENT if state.left:
            return replace(state, way=state.left, left=0)
        case Stage.TRY, Event.NOT_SENT:
            return replace(state, stage=Stage.WAIT if state.is_queued else Stage.REFUSED)
        case Stage.WAIT, Event.TAKEN:
            return replace(state, stage=Stage.TAKEN)
        case Stage.WAIT, Event.INTERRUPTED:
            return State()
        case Stage.WAIT, Event.NOT_TAKEN if state.is_last_wait:
            return replace(state, stage=Stage.LATE)
        case Stage.WAIT, Event.NOT_TAKEN:
            return replace(state, stage=Stage.TRY, way=state.left, left=0)
    raise ValueError(f"{event} cannot follow {state.stage}")


def deliver(process: Tracee, folder: Path, sent: list[Sent]) -> None:
    """Send threads, which are added to `sent`, until the target has taken the payload.

    Raises AttachRefused if none could be sent or the lines did nothing, AttachDelayed if they wait for the GIL.
    """
    delivery = _Delivery(process, folder, sent, monotonic() + TAKEN_S)
    act = {Stage.LOOK: delivery.look, Stage.TRY: delivery.try_way, Stage.WAIT: delivery.wait}
    state = State()
    while state.stage in act:
        state = after(state, act[state.stage](state))
    if state.stage is Stage.REFUSED:
        raise delivery.refusal()
    if state.stage is Stage.LATE:
        raise delivery.lateness()


class _Delivery:
    """What the stages do to the target."""

    def __init__(self, process: Tracee, folder: Path, sent: list[Sent], deadline: float) -> None:
        self._process, self._folder, self._sent, self._deadline = process, folder, sent, deadline
        self._watch = GilWatch(process)
        self._quiet: list[int] = []
        self._complaints: list[str] = []
        self._last_refusal: AttachRefused | None = None
        self._has_run = False
        self._tids_before = set(process.looks())

    def look(self, _state: State) -> Event:
        main = _look(self._process, self._process.pid)
        self._quiet = [] if main is not None and main.state == "R" else _quiet_threads(self._process)
        return Event.MAIN_SLEEPS if self._process.pid in self._quiet else Event.MAIN_RUNS

    def try_way(self, state: State) -> Event:
        # What the threads did may have changed since they were looked at, if a thread was sent meanwhile.
        if state.way == QUIET_THREAD and (self._sent or not self._quiet):
            self._quiet = _quiet_threads(self._process)
        tid = self._process.pid if state.way == PENDING_CALL else next(iter(self._quiet), None)
        caves = code_caves.find_caves(self._process)
        if code_caves.is_queued(self._process, caves, state.way):
            return Event.QUEUED  # by an attach before this one
        if tid is None:
            return Event.NOT_SENT
        try:
            lines = payload.lines(self._process, self._folder, HOW[state.way])
            one = send(self._process, tid, state.way, code_caves.find_free(self._process, caves), lines)
        except AttachRefused as refused:
            self._complaints.append(refused.message)
            self._last_refusal = refused
            return Event.NOT_SENT
        self._sent.append(one)
        if one.complaint:
            self._complaints.append(one.complaint)
            return Event.NOT_SENT
        return Event.QUEUED

    def wait(self, state: State) -> Event:
        until = self._deadline if state.is_last_wait else min(self._deadline, monotonic() + PENDING_CALL_S)
        while not handshake.wait_taken(
            self._process, self._folder, min(until, self._watch.next_look), self._is_interrupted
        ):
            if self._is_interrupted() and monotonic() < self._deadline:
                return Event.INTERRUPTED
            if self._is_interrupted():
                return Event.NOT_TAKEN
            if monotonic() > until:
                if not self._is_loading() or monotonic() > self._deadline + LOADING_S:
                    return Event.NOT_TAKEN
                until = monotonic() + LOOK_APART_S
            if self._watch.is_kept() and not self._lines_have_run():
                return Event.NOT_TAKEN
        return Event.TAKEN

    def refusal(self) -> AttachRefused:
        """Return why nothing could be sent."""
        causes = dict.fromkeys(self._complaints)
        if self._last_refusal is not None and len(causes) == 1:
            return self._last_refusal
        return AttachRefused(
            f"cannot attach to pid {self._process.pid}: "
            + ("; ".join(causes) or "none of its threads can be borrowed"),
            "try again; if that fails too, start the job with the agent: PROBE=1",
        )

    def lateness(self) -> AttachRefused:
        """Return why the target has not taken the payload in time."""
        if self._lines_have_run():
            return AttachRefused(
                f"cannot attach to pid {self._process.pid}: its interpreter ran our lines, but the agent did not load",
                "look for an audit hook of the job that forbids it (sys.addaudithook); if there is none, try again",
            )
        return late(self._process, self._watch.holder, "" if self._sent else "an attach is under way already: ")

    def _is_loading(self) -> bool:
        """Return True while the thread that our lines have started may still get a processor, and take the payload."""
        return self._lines_have_run() and not self._tids_before.issuperset(self._process.looks())

    def _is_interrupted(self) -> bool:
        return self._last_run() == INTERRUPTED

    def _lines_have_run(self) -> bool:
        self._last_run()
        return self._has_run

    def _last_run(self) -> int:
        """Return what came of the last lines. Remembered, because a nudge may use their place once they have run."""
        ran = [one.cave.read(self._process).ran for one in self._sent] or [0]
        self._has_run = self._has_run or any(ran)
        return ran[-1]


def late(process: Tracee, holder: ThreadStack | None, before: str) -> AttachDelayed:
    """Return the error of an attach whose code waits for the interpreter."""
    if holder is not None:
        text = f"in pid {process.pid} {py_spy.holder_text(holder)}; the agent will start when it is released"
    else:
        text = (
            f"pid {process.pid} does not come back to the interpreter: {doing(process)};"
            " the agent will start when it does"
        )
    hint = f"wait, and look with probe list; read its stacks without the GIL: probe {process.pid} backtrace --all"
    return AttachDelayed(before + text, hint)


def doing(process: Tracee) -> str:
    """Return what its main thread does and which threads run: one of them holds the GIL."""
    looks = process.looks()
    main = looks[process.pid]
    where = f" in system call {main.syscall}" if main.syscall is not None else ""
    running = [tid for tid, look in looks.items() if look.state == "R"]
    names = ", ".join(f"{tid} ({process.read(f'task/{tid}/comm').strip()})" for tid in running)
    return f"its main thread is in state {main.state}{where}" + (f"; running: {names}" if names else "")


def _quiet_threads(process: Tracee) -> list[int]:
    """Return threads that sleep and may be borrowed, the best one first, the main one only if there is no better."""
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
    except ENDED:
        return None
