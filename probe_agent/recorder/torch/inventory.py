"""Finds the job's models, optimizers and loaders: what its frames and globals lead to, then what those of libraries
lead to, then what the steps are recorded of.

Runs on a thread of ours when somebody asks: half a millisecond for 10 modules, 20 for 1,000 (benchmarks/samplers.py),
with a short switch interval, so that the training thread waits microseconds at a time. Not by `gc.get_objects()`: that
held the GIL for 23 ms in one piece with torch alone loaded and, by hand, 70 ms with 1,300,000 objects; it keeps alive
whatever ends meanwhile, and does not see what `gc.freeze()` has put away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

from ..guest.main_thread import main_ident
from ..names import candidates, frames
from ..ring.table import MIB
from .seen import Seen

__all__ = ["LOADER", "MODEL", "OPTIMIZER", "find", "mib", "name_of", "roots", "unseen", "wrapped_in"]

LOADER, MODEL, OPTIMIZER = candidates.LOADER, candidates.MODEL, candidates.OPTIMIZER
MAX_OBJECTS = 20_000
MAX_DEPTH = 6
#: The place of what nothing leads to.
USED = {
    OPTIMIZER: "seen when it stepped; no frame leads to it",
    MODEL: "seen when it was called; no frame leads to it",
}


def find(kind: candidates.Kind, training_ident: int | None, seen: Seen) -> list[tuple[Any, str]]:
    """Each object of `kind` that was found, with its place: "local `loader` of main() at train.py:41"."""
    found = list(candidates.walk(kind, roots(training_ident, frames.user_frames), MAX_OBJECTS, MAX_DEPTH))
    found += candidates.walk(kind, roots(training_ident, frames.library_frames), MAX_OBJECTS, MAX_DEPTH)
    inner = {id(wrapped) for value, _, _ in found for wrapped in wrapped_in(value)}
    found += [(value, USED[kind], "") for value in _in_use(kind, seen) if id(value) not in inner]
    once = list({id(value): (value, place, last) for value, place, last in reversed(found)}.values())[::-1]
    if kind is MODEL:
        once = candidates.outermost(once)
    return [(value, place) for value, place, _ in once]


def _in_use(kind: candidates.Kind, seen: Seen) -> list[Any]:
    noted = {MODEL: seen.modules, OPTIMIZER: seen.optimizers}.get(kind)
    return [] if noted is None else [value for value in noted.alive() if kind.matches(type(value))]


def wrapped_in(optimizer: Any) -> Iterator[Any]:
    """The optimizer inside a wrapper, such as Accelerate's, and the one inside that."""
    inner = vars(optimizer).get("optimizer")
    while hasattr(inner, "__dict__"):
        yield inner
        inner = vars(inner).get("optimizer")


def unseen(what: str) -> str:
    """The remark for an answer without rows."""
    return (
        f"no {what} found in the frames of the main and the training thread, in their globals and __main__, and in what"
        f" these hold, {MAX_DEPTH} levels deep; and none has been seen at work since the recorder started"
    )


def roots(
    training_ident: int | None, of_thread: Callable[[int, CodeType], list[FrameType]]
) -> list[tuple[str, Mapping[str, Any]]]:
    """What the frames of the training and the main thread hold; with the job's own also what their globals hold."""
    stack: list[FrameType] = []
    for ident in dict.fromkeys((training_ident, main_ident())):
        if ident is not None:
            stack += of_thread(ident, roots.__code__)
    found: list[tuple[str, Mapping[str, Any]]] = [
        (f"local of {frames.where(frame)}", frames.read(frame))
        for frame in stack
        if frame.f_locals is not frame.f_globals
    ]
    if of_thread is frames.library_frames:
        return found
    found.append(("global of __main__", dict(vars(sys.modules["__main__"]))))
    for frame in stack:
        if frames.is_user(frame):
            file = os.path.basename(frame.f_code.co_filename)
            found.append((f"global of {file}", dict(frame.f_globals)))
    return found


def name_of(value: object) -> str:
    """Its class or, for a function, its own name."""
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)


def mib(tensor: Any) -> float:
    """What a tensor takes in this process: of a sharded one (DTensor) the part that is here."""
    here = getattr(tensor, "_local_tensor", tensor)
    return float(here.numel() * here.element_size()) / MIB
