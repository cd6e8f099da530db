"""Lookup of a name, as by a debugger stopped in the training thread, with the place where it was found.

It searches `__main__`, the locals of the training thread's frames from the innermost user frame outwards, the globals
of those frames, builtins, the obvious candidate and imported modules; then the frames of libraries (`self` of a
framework's Trainer) and the attributes of the only trainer there (`global_step`). Runs on the thread of the evaluated
code. A lookup reads frames for about 10 µs, the search for a candidate takes up to a few ms; both hold the GIL.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from ..guest.main_thread import main_ident
from . import candidates, frames

__all__ = ["Lookup"]

MAX_NEAR_NAMES = 5


class Lookup:
    """The job's names for one evaluation. A value found in a frame is kept until `finish`."""

    def __init__(self, training_ident: Callable[[], int | None], runner: CodeType, told: set[str]) -> None:
        self._training_ident = training_ident
        self._runner = runner
        self._told = told
        self._found: dict[str, Any] = {}
        self._builtins: set[str] = set()
        self._finished = False
        #: Notes for the user that are not sent yet.
        self.notes: list[str] = []
        #: Names found in the job, with the identity of their value.
        self.outside: dict[str, int] = {}

    def find(self, name: str) -> Any:
        """Return the value of `name` in the job. Raises KeyError, also for builtins, which CPython looks up next."""
        script = vars(sys.modules["__main__"])
        if name in script:
            value = script[name]
        elif name in self._found:
            return self._found[name]
        elif name in self._builtins or (self._finished and hasattr(builtins, name)):
            raise KeyError(name)  # code that lives on must not search the job's frames for `print`
        else:
            value, note = self._search(name)
            if self._finished:
                return value
            self._found[name] = value
            if note not in self._told:
                self._told.add(note)
                self.notes.append(note)
        if not self._finished:
            self.outside[name] = id(value)
        return value

    def _search(self, name: str) -> tuple[Any, str]:
        stack = self._frames()
        for frame in stack:
            if frames.defines(frame, name):
                values = frames.read(frame, (name,))
                if name in values:
                    return values[name], f"{name}: local of {frames.where(frame)}"
        for frame in stack:
            if name in frame.f_globals:
                return frame.f_globals[name], f"{name}: global of {os.path.basename(frame.f_code.co_filename)}"
        if hasattr(builtins, name):
            self._builtins.add(name)
            raise KeyError(name)
        if name in candidates.KINDS:
            best = self._candidates(name, stack)
            if len(best) == 1:
                value, place = best[0]
                return value, f"{name}: {candidates.KINDS[name].meaning}, {place}"
            if best:
                raise KeyError(name)
        elif name in sys.modules:
            return sys.modules[name], f"{name}: the module that the target has imported"
        return self._search_libraries(name)

    def _search_libraries(self, name: str) -> tuple[Any, str]:
        libraries = self._library_frames()
        for frame in libraries:
            if frames.defines(frame, name):
                values = frames.read(frame, (name,))
                if name in values:
                    return values[name], f"{name}: local of {frames.where(frame)}"
        if name in candidates.KINDS:
            best = self._candidates(name, libraries)
            if len(best) == 1:
                value, place = best[0]
                return value, f"{name}: {candidates.KINDS[name].meaning}, {place}"
        elif not name.startswith("_"):
            trainers = self._candidates("trainer", [*self._frames(), *libraries])
            if len(trainers) == 1 and (found := candidates.attribute(trainers[0][0], name)) is not None:
                value, way = found
                return value, f"{name}: {way} of the trainer, {trainers[0][1]}"
        raise KeyError(name)

    def _candidates(self, name: str, stack: list[FrameType]) -> list[tuple[Any, str]]:
        roots = [(f"local of {frames.where(frame)}", frames.read(frame)) for frame in stack]
        roots.append(("global of __main__", dict(vars(sys.modules["__main__"]))))
        return candidates.search(name, roots)

    def _frames(self) -> list[FrameType]:
        """Return the job's own frames of the training thread, then of the main thread if that is another one."""
        return self._of_threads(frames.user_frames)

    def _library_frames(self) -> list[FrameType]:
        """Return the frames of libraries on these threads."""
        return self._of_threads(frames.library_frames)

    def _of_threads(self, of_thread: Callable[[int, CodeType], list[FrameType]]) -> list[FrameType]:
        stack: list[FrameType] = []
        main = main_ident()
        for ident in dict.fromkeys((self._training_ident(), main)):
            if ident is not None:
                stack += of_thread(ident, self._runner)
        return stack

    def not_found(self, name: str) -> str:
        """Return the message for an unknown name: where it was searched, similar names, ambiguous candidates."""
        stack, libraries = self._frames(), self._library_frames()
        looked = (
            f"searched __main__, {len(stack)} frames of the job and {len(libraries)} of libraries on the training"
            " thread, and imported modules"
        )
        if name in candidates.KINDS:
            places = [place for _, place in self._candidates(name, stack) or self._candidates(name, libraries)]
            if places:
                return f"name {name!r} is not defined and ambiguous; candidates: {'; '.join(places)}"
        near = self._near(name)
        hint = f"; similar names: {', '.join(near)}" if near else ""
        if name == "loss":
            hint += "; no frame holds a loss at this moment: try again, or SELECT step, loss FROM python.steps"
        return f"name {name!r} is not defined ({looked}){hint}"

    def _near(self, name: str) -> list[str]:
        import difflib

        others = [known for known in self.known_names() if known != name]  # it may be a variable without a value yet
        return difflib.get_close_matches(name, others, MAX_NEAR_NAMES, 0.7)

    def known_names(self) -> list[str]:
        """Return all names that `find` finds by name, nearest first."""
        names = dict.fromkeys(vars(sys.modules["__main__"]))
        stack = self._frames()
        for frame in stack:
            names.update(dict.fromkeys(frames.read(frame)))
        for frame in stack:
            names.update(dict.fromkeys(frame.f_globals))
        names.update(dict.fromkeys(vars(builtins)))
        for frame in self._library_frames():
            names.update(dict.fromkeys(frame.f_code.co_varnames))
        return [name for name in names if isinstance(name, str)]

    def finish(self) -> None:
        """End the evaluation: drop every value."""
        self._finished = True
        self._found.clear()
        self.outside.clear()
