"""Tasks of event loops and greenlets that are not done, for `probe … backtrace --tasks`.

Runs on a thread of the recorder, about 2 µs a frame under the GIL. Tasks are found in asyncio's own sets; greenlets
have no list, so the garbage collector's objects are searched, which takes the GIL for some milliseconds where
greenlet is loaded. No coroutine is resumed and nothing of the job's code runs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from ..guest.redaction import redacted_text
from ..source import Recorder
from ..torch import loaded

__all__ = ["answer"]

READS = True

MAX_TASKS = 1000
MAX_DEPTH = 100
#: An attribute for the frame, and one for what is awaited, of each kind of coroutine.
_KINDS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
#: Where asyncio keeps its tasks: until Python 3.11 in the first one.
_SETS = ("_all_tasks", "_scheduled_tasks", "_eager_tasks")


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one entry per task and suspended greenlet, at most MAX_TASKS, and a note if there are more."""
    tasks = [*_tasks(), *_greenlets()]
    notes = [f"{len(tasks)} tasks, of which {MAX_TASKS} are shown"] if len(tasks) > MAX_TASKS else []
    return {"tasks": tasks[:MAX_TASKS], "notes": notes}


def _tasks() -> Iterator[dict[str, object]]:
    asyncio: Any = loaded("asyncio")
    if asyncio is None:
        return
    found: dict[int, Any] = {}
    for name in _SETS:
        for task in _listed(getattr(asyncio.tasks, name, ())):
            if issubclass(type(task), asyncio.Future) and not asyncio.Future.done(task):
                found[id(task)] = task
    for task in found.values():
        if not issubclass(type(task), asyncio.Task):
            continue  # a loop's own kind of task
        waits_for = getattr(task, "_fut_waiter", None)
        coroutine = asyncio.Task.get_coro(task)
        yield {
            "name": redacted_text(str(asyncio.Task.get_name(task))),
            "kind": "asyncio",
            "is_running": bool(getattr(coroutine, "cr_running", False)),
            "awaits": _awaited(asyncio, waits_for),
            "frames": _chain(coroutine),
        }


def _listed(tasks: Any) -> list[Any]:
    """Return the members of a set that other threads may change meanwhile."""
    for _ in range(100):
        try:
            return list(tasks)
        except RuntimeError:
            continue
    return []


def _awaited(asyncio: Any, waits_for: Any) -> str | None:
    if waits_for is None:
        return None
    if issubclass(type(waits_for), asyncio.Task):
        return f"task {redacted_text(str(asyncio.Task.get_name(waits_for)))}"
    children = getattr(waits_for, "_children", None)
    return f"{len(children)} tasks" if type(children) is list else type(waits_for).__name__


def _chain(coroutine: Any) -> list[dict[str, object]]:
    """Return the frames of a suspended coroutine and of those that it awaits, innermost first."""
    frames: list[dict[str, object]] = []
    while coroutine is not None and len(frames) < MAX_DEPTH:
        kind = next(((frame, awaits) for frame, awaits in _KINDS if hasattr(type(coroutine), frame)), None)
        if kind is None:
            break
        frame = getattr(coroutine, kind[0])
        if frame is not None:
            frames.append(_frame(frame))
        coroutine = getattr(coroutine, kind[1])
    return frames[::-1]


def _greenlets() -> Iterator[dict[str, object]]:
    greenlet: Any = loaded("greenlet")
    if greenlet is None:
        return
    for one in [one for one in gc.get_objects() if issubclass(type(one), greenlet.greenlet)]:
        frame = greenlet.greenlet.gr_frame.__get__(one)
        frames: list[dict[str, object]] = []
        while frame is not None and len(frames) < MAX_DEPTH:
            frames.append(_frame(frame))
            frame = frame.f_back
        if frames:
            kind = type(one)
            yield {
                "name": f"{kind.__module__}.{kind.__qualname__}",
                "kind": "greenlet",
                "is_running": False,
                "awaits": None,
                "frames": frames,
            }


def _frame(frame: FrameType) -> dict[str, object]:
    code = frame.f_code
    func = getattr(code, "co_qualname", code.co_name)  # qualified since Python 3.11
    return {"func": func, "file": code.co_filename, "lineno": frame.f_lineno or code.co_firstlineno}
