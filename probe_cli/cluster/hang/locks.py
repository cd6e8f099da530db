"""Holders of the locks that a rank waits for, and where they took them, from the stacks of all its threads.

An RLock knows its owner. A plain lock knows only that it is locked: then it is the thread that runs a line under the
same lock, by its source. Needs local variables, in which a lock has its number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from probe_agent.wire import Backtrace, Frame, ThreadStack

from .doing import Activity, activity_of, is_job, place, trains

__all__ = ["Held", "holder"]

#: The recorder's texts of a lock of either kind that is held.
_OWNED = re.compile(r"<RLock held by thread (?P<name>.*) \((?P<ident>\d+)\)>")
_LOCKED = re.compile(r"<lock 0x[0-9a-f]+, locked>")


class Held(NamedTuple):
    """A sentence on the lock that the training thread waits for, and whether it is held for ever."""

    said: str
    is_deadlock: bool = False


def holder(stacks: Backtrace) -> Held | None:
    """Return who holds the lock that the training thread waits for; None if its functions name none, or several."""
    waits = trains(stacks)
    found = _waited_for(waits) if waits is not None else None
    if waits is None or found is None:
        return None
    name, text = found
    others = [thread for thread in stacks.threads if thread.ident != waits.ident and not thread.is_probe]
    owned = _OWNED.fullmatch(text)
    if owned is not None:
        owner = [thread for thread in others if thread.ident == int(owned["ident"])]
        held = f"{name} is held by its thread {owned['name']}{_which(owner[0], text) if owner else ''}"
        return _or_deadlock(held, waits, owner)
    inside = next((frame for frame in waits.frames if _has(frame, text, is_inside=True)), None)
    if inside is not None:
        return Held(f"{name} is held by the same thread, since {place(inside)}: a deadlock", is_deadlock=True)
    for is_inside, held in ((True, "is held by"), (False, "may be held by")):
        threads = [one for one in others if any(_has(frame, text, is_inside=is_inside) for frame in one.frames)]
        owner = [one for one in threads if not _waits(one, text)]
        named = [f"thread {one.thread or '(unnamed)'}{_which(one, text)}" for one in owner]
        if named:
            said = f"{name} {held} its {', its '.join(named)}"
            return _or_deadlock(said, waits, owner) if is_inside else Held(said)
    stuck = next((one for one in others if activity_of(one).activity is Activity.LOCK and not _waits(one, text)), None)
    if stuck is not None:
        waits_too = f"its thread {stuck.thread or '(unnamed)'}{_which(stuck, text)}, may hold it"
        return Held(f"{name} is locked, and no other thread is in a function that names it; {waits_too}")
    return Held(f"{name} is locked, and no other thread is in a function that names it: it was not released")


def _or_deadlock(said: str, waits: ThreadStack, owner: list[ThreadStack]) -> Held:
    """Add that the one thread that holds the lock waits for a lock of the waiting thread, if it does."""
    wanted = _waited_for(owner[0]) if len(owner) == 1 else None
    if wanted is None or activity_of(owner[0]).activity is not Activity.LOCK:
        return Held(said)
    name, text = wanted
    owned = _OWNED.fullmatch(text)
    inside = next((frame for frame in waits.frames if _has(frame, text, is_inside=True)), None)
    if inside is None and (owned is None or int(owned["ident"]) != waits.ident):
        return Held(said)
    since = f", since {place(inside)}" if inside is not None else ""
    return Held(f"{said}; {name} is held by the thread that waits{since}: a deadlock", is_deadlock=True)


def _waited_for(thread: ThreadStack) -> tuple[str, str] | None:
    """Return name and text of the held lock that the innermost function to name any has; the line decides between
    several."""
    for frame in thread.frames:
        locks = {name: text for name, text in (frame.locals or {}).items() if _is_of_other(text, thread)}
        # One lock may have several names.
        in_line = {text: name for name, text in locks.items() if _names(frame.source or "", name)}
        chosen = in_line or {text: name for name, text in locks.items()}
        if len(chosen) == 1:
            text, name = next(iter(chosen.items()))
            return name, text
        if locks or is_job(frame):
            return None
    return None


def _names(line: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}\b", line) is not None


def _is_of_other(text: str, thread: ThreadStack) -> bool:
    """Return whether it is a lock that is held, and not an RLock of the thread's own."""
    owned = _OWNED.fullmatch(text)
    return int(owned["ident"]) != thread.ident if owned is not None else _LOCKED.fullmatch(text) is not None


def _has(frame: Frame, text: str, *, is_inside: bool) -> bool:
    """Return whether the function names the lock, and if it must be, whether its line is run under it."""
    names = [name for name, value in (frame.locals or {}).items() if value == text]
    return any(name in frame.locks for name in names) if is_inside else bool(names)


def _waits(thread: ThreadStack, text: str) -> bool:
    """Return whether a thread waits for this lock as well."""
    found = _waited_for(thread) if activity_of(thread).activity is Activity.LOCK else None
    return found is not None and found[1] == text


def _which(thread: ThreadStack, text: str) -> str:
    """Return what the thread does, and where it has the lock from if that is another function."""
    act = activity_of(thread)
    frames = [frame for is_inside in (True, False) for frame in thread.frames if _has(frame, text, is_inside=is_inside)]
    where = place(frames[0]) if frames else act.frame
    return f", which {act}" + (f", since {where}" if where != act.frame else "")
