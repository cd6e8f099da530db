"""Finds the job's models, optimizers and loaders: what its frames and globals lead to.

Runs on a thread of ours when somebody asks: half a millisecond for 10 modules, 20 for 1,000 (benchmarks/samplers.py),
with a short switch interval, so that the training thread waits microseconds at a time. Not by `gc.get_objects()`: that
held the GIL for 23 ms in one piece with torch alone loaded and, by hand, 70 ms with 1,300,000 objects; it keeps alive
whatever ends meanwhile, and does not see what `gc.freeze()` has put away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from .evaluate import candidates, frames
from .main_thread import main_ident
from .source import Recorder

__all__ = ["LOADER", "MIB", "MODEL", "OPTIMIZER", "find", "mib", "name_of", "unseen"]

LOADER, MODEL, OPTIMIZER = candidates.LOADER, candidates.MODEL, candidates.OPTIMIZER
MAX_OBJECTS = 20_000
MAX_DEPTH = 6
MIB = 1024.0 * 1024.0


def find(kind: candidates.Kind, recorder: Recorder) -> list[tuple[Any, str]]:
    """Each object of `kind` that was found, with its place: "local `loader` of main() at train.py:41"."""
    found = list(candidates.walk(kind, _roots(recorder), MAX_OBJECTS, MAX_DEPTH))
    if kind is MODEL:
        found = candidates.outermost(found)
    return [(value, place) for value, place, _ in found]


def unseen(what: str) -> str:
    """The remark for an answer without rows."""
    return (
        f"no {what} found in the frames of the main and the training thread, in their globals and __main__, and in what"
        f" these hold, {MAX_DEPTH} levels deep"
    )


def _roots(recorder: Recorder) -> list[tuple[str, Mapping[str, Any]]]:
    stack: list[FrameType] = []
    for ident in dict.fromkeys((recorder.step.thread, main_ident())):
        if ident is not None:
            stack += frames.user_frames(ident, _roots.__code__)
    roots: list[tuple[str, Mapping[str, Any]]] = [
        (f"local of {frames.where(frame)}", frames.read(frame))
        for frame in stack
        if frame.f_locals is not frame.f_globals
    ]
    roots.append(("global of __main__", dict(vars(sys.modules["__main__"]))))
    for frame in stack:
        if frames.is_user(frame):
            file = os.path.basename(frame.f_code.co_filename)
            roots.append((f"global of {file}", dict(frame.f_globals)))
    return roots


def name_of(value: object) -> str:
    """Its class or, for a function, its own name."""
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)


def mib(tensor: Any) -> float:
    """What a tensor takes in this process: of a sharded one (DTensor) the part that is here."""
    here = getattr(tensor, "_local_tensor", tensor)
    return float(here.numel() * here.element_size()) / MIB
