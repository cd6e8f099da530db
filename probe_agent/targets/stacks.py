"""Where a target is right now: its recorder says so, or, when it cannot, its memory does, or faulthandler.

Runs beside the target; the recorder answers in about a millisecond of the target's GIL, the other two need none.
"""

from __future__ import annotations

from dataclasses import replace
from time import time

from probe_agent.errors import NoAnswer
from probe_agent.wire import Backtrace, Frame, ThreadStack

from .control import ask
from .end import End
from .faulthandler import dump_stack
from .target import Target

__all__ = ["take_stacks"]

#: Longer than this, and we take it that nobody gets the GIL.
_STACKS_S = 0.6


def take_stacks(target: Target, *, all_threads: bool, outside: bool = False) -> Backtrace:
    """The stacks of `target`'s main thread (and of the one that trains, or holds the GIL), or of all.

    With `outside` its recorder is not asked. Raises NoAnswer.
    """
    return _with_native(target, _take(target, all_threads, outside))


def _take(target: Target, all_threads: bool, outside: bool) -> Backtrace:
    if not target.has_recorder:
        note = f"{target} has no recorder in it: its stacks are read from outside"
        return _from_outside(target, all_threads, note)
    if target.is_alive and target.end is not None:
        return _while_shutting_down(target, all_threads, target.end)
    if outside:
        return _from_outside(target, all_threads, f"the stacks of {target} are read from outside")
    try:
        answer = ask(target, "stacks", timeout_s=_STACKS_S, all=all_threads)
    except NoAnswer as silence:
        if target.process is None or not target.is_alive:
            raise
        return _without_recorder(target, all_threads, silence)
    try:
        threads = tuple(_thread(said) for said in answer["threads"])
    except (KeyError, TypeError) as error:
        raise NoAnswer(f"{target} described its stacks in a way we do not know: {error!r}", "attach again") from error
    notes = []
    if "shuts_down" in answer:
        after = f" after {answer['shuts_down']}" if answer["shuts_down"] else ""
        notes.append(f"{target}: its interpreter is shutting down{after}")
    return Backtrace(tuple(sorted(threads, key=lambda thread: not thread.is_main)), "recorder", tuple(notes))


def _without_recorder(target: Target, all_threads: bool, silence: NoAnswer) -> Backtrace:
    """The stacks of one whose recorder is silent."""
    why = silence.message
    if isinstance(silence.__cause__, TimeoutError):
        why = f"{target} did not answer within {_STACKS_S:g} s"
        if target.state.startswith("stopped"):
            why += f": it is {target.state} (let it go on: kill -CONT {target.pid})"
    try:
        return _from_outside(target, all_threads, f"{why}; its stacks are read from outside")
    except NoAnswer as unreadable:
        if target.state.startswith("stopped"):
            raise  # faulthandler cannot run in it
        note = f"{why}: a thread may hold the GIL in a C call; its main thread's stack comes from faulthandler"
        return Backtrace((dump_stack(target),), "faulthandler", (note, unreadable.message))


def _while_shutting_down(target: Target, all_threads: bool, end: End) -> Backtrace:
    """The stacks of one that has come to its end and is still there: its recorder has stopped."""
    since = max(0.0, time() - (end.at or end.last_seen))
    note = f"{target}: its interpreter is shutting down, since {since:.1f} s: it {end.how}"
    try:
        return _from_outside(target, all_threads, f"{note}; its stacks are read from outside")
    except NoAnswer as unreadable:
        return Backtrace((_main_without_frames(target),), "outside", (note, unreadable.message))


def _main_without_frames(target: Target) -> ThreadStack:
    return ThreadStack("MainThread", 0, target.pid, True, False, False, ())


def _with_native(target: Target, taken: Backtrace) -> Backtrace:
    """The same; of threads without a Python frame, with what the kernel says they do. The main thread is among them
    wherever it is."""
    threads = taken.threads
    if not any(thread.is_main for thread in threads):
        threads = (_main_without_frames(target), *threads)
    return replace(taken, threads=tuple(t if t.frames else replace(t, native=_native(target, t)) for t in threads))


def _native(target: Target, thread: ThreadStack) -> str | None:
    """Where in the kernel a thread waits, or what state it is in; None where that cannot be told."""
    tid = target.pid if thread.is_main else thread.tid
    if target.process is None or tid is None:
        return None
    try:
        with open(f"/proc/{target.pid}/task/{tid}/wchan") as file:
            waits_in = file.read().strip()
        if waits_in not in ("", "0"):
            return waits_in
        with open(f"/proc/{target.pid}/task/{tid}/stat") as file:
            letter = file.read().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return "native code, which runs" if letter == "R" else f"the kernel, in state {letter}"


def _from_outside(target: Target, all_threads: bool, note: str) -> Backtrace:
    from probe_agent import inject

    threads = inject.read_stacks(target.pid)
    holder = next((thread for thread in threads if thread.holds_gil), None)
    if holder is not None:
        note = f"{note}; {inject.told(holder)}"
    wanted = threads if all_threads else tuple(one for one in threads if one.is_main or one.holds_gil)
    return Backtrace(wanted, "outside", (note,))


def _thread(said: dict[str, object]) -> ThreadStack:
    frames = said["frames"]
    assert isinstance(frames, list)
    return ThreadStack(
        thread=said["thread"],  # type: ignore[arg-type]
        ident=said["ident"],  # type: ignore[arg-type]
        tid=said["tid"],  # type: ignore[arg-type]
        is_main=bool(said["is_main"]),
        is_training=bool(said["is_training"]),
        is_probe=bool(said["is_probe"]),
        frames=tuple(
            Frame(frame["func"], frame["file"], frame["lineno"], depth, "python", frame.get("source"))
            for depth, frame in enumerate(frames)
        ),
    )
