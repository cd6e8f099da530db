"""Search for the job's models, optimizers and loaders: in its frames and globals, in library frames, among the seen.

Runs on a thread of the recorder on request: 0.5 ms for 10 modules, 20 ms for 1,000 (benchmarks/samplers.py), with a
short switch interval, so that the training thread waits microseconds at a time. It does not use `gc.get_objects()`:
that held the GIL for 23 ms in one piece with only torch loaded, 70 ms with 1.3 million objects, keeps dying objects
alive and misses those hidden by `gc.freeze()`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

from ..guest.main_thread import main_ident
from ..guest.walk import variables
from ..names import candidates, frames
from ..ring.table import MIB
from .seen import Seen

__all__ = [
    "LOADER", "MODEL", "OPTIMIZER", "SCHEDULER", "attributes_of", "find", "keeps_graph", "mib", "name_of", "numbered",
    "parameters", "roots", "unseen", "wrapped_in",
]  # fmt: skip

LOADER, MODEL, OPTIMIZER = candidates.LOADER, candidates.MODEL, candidates.OPTIMIZER
SCHEDULER = candidates.SCHEDULER
MAX_OBJECTS = 20_000
MAX_DEPTH = 6
#: Place of an object that no frame leads to.
USED = {
    OPTIMIZER: "seen when it stepped; no frame leads to it",
    MODEL: "seen when it was called; no frame leads to it",
}


def find(kind: candidates.Kind, training_ident: int | None, seen: Seen) -> list[tuple[Any, str]]:
    """Return each object of `kind` with its place: "local `loader` of main() at train.py:41", its first line."""
    found = list(candidates.walk(kind, roots(training_ident, frames.user_frames), MAX_OBJECTS, MAX_DEPTH))
    found += candidates.walk(kind, roots(training_ident, frames.library_frames), MAX_OBJECTS, MAX_DEPTH)
    inner = {id(wrapped) for value, _, _ in found for wrapped in wrapped_in(value)}
    found += [(value, USED[kind], "") for value in _in_use(kind, seen) if id(value) not in inner]
    once = list({id(value): (value, place, last) for value, place, last in reversed(found)}.values())[::-1]
    if kind is MODEL:
        once = candidates.outermost(once)
    return [(value, place) for value, place, _ in once]


def parameters(models: Iterable[tuple[Any, str]], optimizers: Iterable[tuple[Any, str]]) -> Iterator[Any]:
    """Yield the parameters of what `find` has returned, without calling the job's code; shared ones more than once."""
    for model, _ in models:
        modules = list(candidates.members(model))
        known = set(map(id, modules))
        for module in modules:  # grows by those that are not registered
            yield from [one for one in list(vars(module).get("_parameters", {}).values()) if one is not None]
            for _, held in candidates.unregistered(module, ""):
                if "_parameters" not in vars(held):
                    yield held
                elif id(held) not in known:
                    below = [one for one in candidates.members(held) if id(one) not in known]
                    known.update(map(id, below))
                    modules += below
    for optimizer, _ in optimizers:
        for group in list(attributes_of(optimizer).get("param_groups", ())):
            yield from list(group.get("params", ()))


def numbered(found: Iterable[tuple[Any, str]]) -> Iterator[tuple[str, Any, str]]:
    """Yield each object behind its name, the class, with a number from the second one of a class on: `GPT#2`."""
    classes: dict[str, int] = {}
    for value, place in found:
        name = type(value).__name__
        classes[name] = classes.get(name, 0) + 1
        yield name if classes[name] == 1 else f"{name}#{classes[name]}", value, place


def _in_use(kind: candidates.Kind, seen: Seen) -> list[Any]:
    noted = {MODEL: seen.modules, OPTIMIZER: seen.optimizers}.get(kind)
    return [] if noted is None else [value for value in noted.alive() if kind.matches(type(value))]


def wrapped_in(optimizer: Any) -> Iterator[Any]:
    """Yield the optimizer inside a wrapper such as Accelerate's, then the one inside that."""
    inner = vars(optimizer).get("optimizer")
    while hasattr(inner, "__dict__"):
        yield inner
        inner = vars(inner).get("optimizer")


def attributes_of(optimizer: Any) -> Mapping[str, Any]:
    """Return the attributes of an optimizer, or of the one inside a wrapper; empty if none has parameter groups."""
    chain = (vars(one) for one in (optimizer, *wrapped_in(optimizer)))
    return next((held for held in chain if "param_groups" in held), {})


def unseen(what: str) -> str:
    """Return the note for an answer without rows."""
    return (
        f"no {what} found in the frames of the main and the training thread, their globals and __main__, {MAX_DEPTH}"
        " levels deep, and none has been used since the recorder started"
    )


def roots(
    training_ident: int | None, of_thread: Callable[[int, CodeType], list[FrameType]]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the locals of the training and the main thread's frames; for the job's own frames, their globals too."""
    stack: list[FrameType] = []
    for ident in dict.fromkeys((training_ident, main_ident())):
        if ident is not None:
            stack += of_thread(ident, roots.__code__)
    found: list[tuple[str, Mapping[str, Any]]] = [
        # The line that runs is another one each time, and on each rank: the place of an object stays the same.
        (f"local of {frames.where(frame, frame.f_code.co_firstlineno)}", frames.read(frame))
        for frame in stack
        if variables(frame) is not frame.f_globals
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
    """Return the name of a function, or the class of anything else."""
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)


def keeps_graph(tensor: Any) -> bool:
    """Return whether a plain tensor has a node of a graph, on any thread. `is_leaf` of a view makes its node anew, and
    raises where that is forbidden; what a view requires it has from its base."""
    return bool(tensor.requires_grad if tensor._is_view() else not tensor.is_leaf)


def mib(tensor: Any) -> float:
    """Return the MiB that a tensor takes in this process: the local shard of a DTensor."""
    here = getattr(tensor, "_local_tensor", tensor)
    return float(here.numel() * here.element_size()) / MIB
