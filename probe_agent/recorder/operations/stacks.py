"""Stacks of the target's threads, for `probe … backtrace`, `python.backtrace` and `python.stacks`.

Runs on a thread of the recorder, which holds the GIL for a few microseconds per frame. Reads code objects and line
numbers, and local variables only when they are asked for.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Collection, Mapping
from typing import Any

from ..guest import own_threads
from ..guest.end_mark import what_was_raised
from ..guest.main_thread import main_ident
from ..guest.thread_ids import native_ids
from ..guest.walk import frames_of, idents, lines_of
from ..names.cells import cell_line, cell_name
from ..names.values import locals_of
from ..source import Recorder

__all__ = ["answer", "take"]

READS = True

#: Of a thread, innermost first.
MAX_FRAMES_WITH_LOCALS = 50
#: Name of the recorder's threads in every answer; Python has none for them.
OUR_NAME = "probe"
_OURS = __name__.rpartition(".operations.")[0] + "."


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return the stacks of the main and the training thread; with `all`, of every thread."""
    threads = take(
        bool(request.get("all")), recorder.step.thread, own_threads.idents(), with_locals=bool(request.get("locals"))
    )
    return {"threads": threads, **({"shuts_down": what_was_raised()} if _shuts_down() else {})}


def take(
    all_threads: bool, training_ident: int | None, probe_idents: Collection[int], *, with_locals: bool = False
) -> list[dict[str, object]]:
    """Return one entry per thread: the main thread, the training thread, then with `all_threads` the others."""
    main = main_ident()
    threading: Any = sys.modules.get("threading")
    known: dict[int, Any] = dict(getattr(threading, "_active", {}))
    threads: list[dict[str, object]] = []
    running = idents()
    if main not in running:  # it runs exit handlers, say, in a program that has never imported threading
        main = next((ident for ident, tid in native_ids(running).items() if tid == os.getpid()), main)
    shown = [ident for ident in running if all_threads or ident in (main, training_ident)]
    if main not in running:
        threads.append(_without_frames(main))
    native = native_ids([ident for ident in shown if ident not in known])
    for ident in shown:
        thread = known.get(ident)
        tid = os.getpid() if ident == main else getattr(thread, "native_id", native.get(ident))
        name = getattr(thread, "name", None) or ("MainThread" if ident == main else None)
        if ident not in known and _is_of_subinterpreter(ident):
            name = f"{_name_in_subinterpreter(ident) or 'unnamed'}, of a subinterpreter"
        frames = _frames_of(ident, ident in probe_idents, with_locals)
        if not frames and ident != main:
            continue  # it has ended meanwhile
        threads.append(
            {
                "thread": OUR_NAME if ident in probe_idents and ident != main else name,
                "ident": ident,
                "tid": tid,
                "is_main": ident == main,
                "is_training": ident == training_ident,
                "is_probe": ident in probe_idents,
                "frames": frames,
            }
        )
    threads.sort(key=lambda entry: (not entry["is_main"], not entry["is_training"], bool(entry["is_probe"])))
    return threads


def _without_frames(main: int | None) -> dict[str, object]:
    """Return the entry of a main thread that runs no Python: it has ended, or an embedding program runs."""
    roles = {"is_main": True, "is_training": False, "is_probe": False}
    return {"thread": "MainThread", "ident": main or 0, "tid": os.getpid(), **roles, "frames": []}


def _is_of_subinterpreter(ident: int) -> bool:
    """Return whether another interpreter of this process runs the thread: each has its own builtins."""
    return any(frame.f_builtins is not vars(builtins) for frame in frames_of(ident)[:1])


def _name_in_subinterpreter(ident: int) -> str:
    """Return the thread's name in the `threading` of its own interpreter."""
    for one in frames_of(ident):
        if dict.get(one.f_globals, "__name__") == "threading":
            return str(getattr(dict.get(one.f_globals, "_active", {}).get(ident), "name", ""))
    return ""


def _shuts_down() -> bool:
    """Return whether the main thread has left the script and runs exit handlers."""
    threading: Any = sys.modules.get("threading")
    return threading is not None and not threading.main_thread().is_alive()


def _frames_of(ident: int, with_ours: bool, with_locals: bool) -> list[dict[str, object]]:
    """Return the thread's frames, innermost first; `lineno` is the line being executed.

    Without `with_ours` the frames of hooks between two frames of the job are left out.
    """
    frames: list[dict[str, object]] = []
    for frame, line in lines_of(ident):
        code = frame.f_code
        func = getattr(code, "co_qualname", code.co_name)  # qualified since Python 3.11
        module = dict.get(frame.f_globals, "__name__")
        if with_ours or not (type(module) is str and module.startswith(_OURS)):
            file, lineno = code.co_filename, line or code.co_firstlineno
            cell = cell_name(file)
            source = None if cell is None else cell_line(file, lineno)
            told: dict[str, object] = {"func": func, "file": cell or file, "lineno": lineno, "source": source}
            if with_locals and not with_ours and len(frames) < MAX_FRAMES_WITH_LOCALS:
                told["locals"] = locals_of(frame)
            frames.append(told)
    return frames
