"""Stacks of a target: from its recorder; if that is silent, from its memory (py-spy) or from faulthandler.

Runs beside the target. The recorder needs about 1 ms of the target's GIL, the other two need none of it. C frames
come from pystack, which stops the target for them.
"""

from __future__ import annotations

from dataclasses import replace
from time import time
from typing import Any

from probe_agent import inject
from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.procfs import Process
from probe_agent.thread_state import read_thread_state
from probe_agent.wire import Backtrace, Frame, TaskStack, ThreadStack

from .control import ask
from .ended import End
from .faulthandler import dump_stack
from .last_stack import last_stack
from .target import Target

__all__ = ["take_stacks", "take_tasks", "with_native", "with_state"]

#: A recorder that takes longer is believed not to get the GIL.
_STACKS_S = 0.6


def take_stacks(target: Target, *, all_threads: bool, outside: bool = False, with_locals: bool = False) -> Backtrace:
    """Return the stacks of `target`'s main thread (and of the one that trains, or holds the GIL), or of all threads.

    With `outside`, its recorder is not asked. Of a target that has ended, the last stack it left. Raises NoAnswer.
    """
    if target.has_recorder and not target.is_alive:
        return last_stack(target, all_threads=all_threads)
    return _with_states(target, _take(target, all_threads, outside, with_locals))


def with_native(target: Target, taken: Backtrace, *, all_threads: bool) -> Backtrace:
    """Put the C and C++ frames between the Python frames; with `all_threads`, add the threads that run no Python.

    The target stands still meanwhile. Where that cannot be done, the stacks are as they were, with a note.
    """
    if target.process is None or not target.is_alive:
        return replace(taken, notes=(*taken.notes, f"{target} has ended: it has no C frames"))
    try:
        found = inject.read_native_stacks(target.pid, all_threads=all_threads)
    except NoAnswer as unreadable:
        return replace(taken, notes=(*taken.notes, unreadable.message))
    note = f"{target} stood still for {found.stopped_s:.2f} s while its C frames were read"
    if found.num_unmerged:
        note += f"; of {found.num_unmerged} threads only the Python frames could be followed"
    native = {thread.tid: thread for thread in found.threads}
    threads = []
    for thread in taken.threads:
        twin = native.pop(thread.tid, None)
        if twin is not None:
            thread = replace(thread, frames=_known_frames(thread, twin), holds_gil=twin.holds_gil)
        threads.append(thread)
    if all_threads:
        threads += native.values()
    return _with_states(target, replace(taken, threads=tuple(threads), notes=(*taken.notes, note)))


def _known_frames(thread: ThreadStack, twin: ThreadStack) -> tuple[Frame, ...]:
    """Return the frames of `twin`, those of Python with what is known of them if the thread has not moved since."""
    python = [frame for frame in twin.frames if frame.frame_type == "python"]
    if [(frame.file, frame.lineno) for frame in python] != [(frame.file, frame.lineno) for frame in thread.frames]:
        return twin.frames
    known = iter(thread.frames)
    return tuple(
        replace(next(known), depth=frame.depth) if frame.frame_type == "python" else frame for frame in twin.frames
    )


def take_tasks(target: Target) -> tuple[tuple[TaskStack, ...], tuple[str, ...]]:
    """Return the asyncio tasks and greenlets of `target`, with notes. Only its recorder sees them."""
    try:
        answer = ask(target, "tasks", timeout_s=_STACKS_S)
        tasks = tuple(
            TaskStack(said["name"], said["kind"], said["is_running"], said["awaits"], _frames(said["frames"]))
            for said in answer["tasks"]
        )
    except (NoAnswer, BadRequest) as silence:
        return (), (f"no tasks: {silence.message}",)
    except (KeyError, TypeError) as error:
        return (), (f"no tasks: cannot read what {target} has sent: {error!r}",)
    notes = tuple(map(str, answer.get("notes", ())))
    return tasks, notes if tasks else (*notes, f"{target} has no asyncio tasks or greenlets now")


def _take(target: Target, all_threads: bool, outside: bool, with_locals: bool) -> Backtrace:
    if not target.has_recorder:
        note = f"{target} has no recorder in it: its stacks are read from outside"
        return _from_outside(target, all_threads, note, with_locals)
    if target.is_alive and target.end is not None:
        return _while_shutting_down(target, all_threads, target.end)
    if outside:
        return _from_outside(target, all_threads, f"the stacks of {target} are read from outside", with_locals)
    try:
        answer = ask(target, "stacks", timeout_s=_STACKS_S, all=all_threads, locals=with_locals)
    except NoAnswer as silence:
        if target.process is None or not target.is_alive:
            raise
        return _without_recorder(target, all_threads, silence, with_locals)
    try:
        threads = tuple(_thread(said) for said in answer["threads"])
    except (KeyError, TypeError) as error:
        raise NoAnswer(
            f"cannot read the stacks that {target} has sent: {error!r}", f"attach again: probe {target.pid} inject"
        ) from error
    notes = []
    if "shuts_down" in answer:
        after = f" after {answer['shuts_down']}" if answer["shuts_down"] else ""
        notes.append(f"{target}: its interpreter is shutting down{after}")
    return Backtrace(tuple(sorted(threads, key=lambda thread: not thread.is_main)), "recorder", tuple(notes))


def _without_recorder(target: Target, all_threads: bool, silence: NoAnswer, with_locals: bool) -> Backtrace:
    """Return the stacks of a target whose recorder is silent."""
    why = silence.message
    if isinstance(silence.__cause__, TimeoutError):
        why = f"{target} did not answer within {_STACKS_S:g} s"
        if target.state.startswith("stopped"):
            why += f": it is {target.state} (continue it: kill -CONT {target.pid})"
    try:
        return _from_outside(target, all_threads, f"{why}; its stacks are read from outside", with_locals)
    except NoAnswer as unreadable:
        if target.state.startswith("stopped"):
            raise  # faulthandler cannot run in it
        note = f"{why}: a thread may hold the GIL in a C call; its main thread's stack comes from faulthandler"
        return Backtrace((dump_stack(target),), "faulthandler", (note, unreadable.message))


def _while_shutting_down(target: Target, all_threads: bool, end: End) -> Backtrace:
    """Return the stacks of a target that is shutting down: its recorder has stopped."""
    since = max(0.0, time() - (end.at or end.last_seen))
    note = f"{target}: its interpreter is shutting down, since {since:.1f} s: it {end.how}"
    try:
        return _from_outside(target, all_threads, f"{note}; its stacks are read from outside")
    except NoAnswer as unreadable:
        return Backtrace((_main_without_frames(target),), "outside", (note, unreadable.message))


def _main_without_frames(target: Target) -> ThreadStack:
    return ThreadStack("MainThread", 0, target.pid, True, False, False, ())


def _with_states(target: Target, taken: Backtrace) -> Backtrace:
    """Add the main thread if it is missing, and to every thread what the kernel says of it."""
    threads = taken.threads
    if not any(thread.is_main for thread in threads):
        threads = (_main_without_frames(target), *threads)
    return replace(taken, threads=tuple(with_state(target.process, thread) for thread in threads))


def with_state(process: Process | None, thread: ThreadStack) -> ThreadStack:
    """Return the thread with its state; without one if it has ended, or may not be read."""
    if process is None:
        return thread
    try:
        tid = process.pid if thread.is_main else None if thread.tid is None else process.outer(thread.tid)
        if tid is None:
            return thread
        seen = read_thread_state(process, tid)
    except OSError:
        return thread
    return replace(thread, state=seen.state, syscall=seen.syscall, waits_in=seen.waits_in, cpu_s=seen.cpu_s)


def _from_outside(target: Target, all_threads: bool, note: str, with_locals: bool = False) -> Backtrace:
    threads = inject.read_stacks(target.pid, with_locals=with_locals)
    holder = next((thread for thread in threads if thread.holds_gil), None)
    if holder is not None:
        note = f"{note}; {inject.holder_text(holder)}"
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
        frames=_frames(frames),
    )


def _frames(said: list[dict[str, Any]]) -> tuple[Frame, ...]:
    return tuple(
        Frame(frame["func"], frame["file"], frame["lineno"], depth, "python", frame.get("source"), frame.get("locals"))
        for depth, frame in enumerate(said)
    )
