"""Obvious candidate for a name that the script does not use: the outermost module for `model`, and so on.

A bounded search through the values of frames and `__main__`. Reads `__dict__`, lists, tuples and dicts; calls no code
of the job. Takes up to a few ms of the GIL, once per name in an eval.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

__all__ = [
    "KINDS", "LOADER", "MODEL", "OPTIMIZER", "SCHEDULER", "Found", "Kind", "attribute", "attributes", "items",
    "members", "outermost", "search", "unregistered", "walk",
]  # fmt: skip

MAX_OBJECTS = 2_000
MAX_DEPTH = 3
MAX_CHILDREN = 100
TRIES = 5
_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), type)
_PLAIN = frozenset(_LEAVES)
#: What torch keeps the registered ones in.
_REGISTERED = frozenset(("_parameters", "_buffers", "_modules"))

Found = tuple[Any, str, str]  # value, where it is, its last name


class Kind(NamedTuple):
    """Meaning of a name; `matches` is called once per class."""

    meaning: str
    matches: Callable[[type], bool]


def _derives(*qualified: str) -> Callable[[type], bool]:
    names = {tuple(name.rsplit(".", 1)) for name in qualified}
    return lambda kind: any((base.__module__, base.__name__) in names for base in kind.__mro__)


def _called(suffix: str) -> Callable[[type], bool]:
    return lambda kind: kind.__name__.endswith(suffix)


_is_module = _derives("torch.nn.modules.module.Module")
_is_loss = _derives("torch.nn.modules.loss._Loss")
_is_parameter = _derives("torch.nn.parameter.Parameter")
MODEL = Kind("the outermost nn.Module", lambda kind: _is_module(kind) and not _is_loss(kind))
_LOSS = Kind("the only loss module", _is_loss)
OPTIMIZER = Kind("the only optimizer", _derives("torch.optim.optimizer.Optimizer"))
LOADER = Kind("the only DataLoader", _derives("torch.utils.data.dataloader.DataLoader"))
SCHEDULER = Kind(
    "the only learning rate scheduler",
    _derives(*(f"torch.optim.lr_scheduler.{name}" for name in ("LRScheduler", "_LRScheduler", "ReduceLROnPlateau"))),
)
_TRAINER = Kind("the only object whose class ends with Trainer", _called("Trainer"))
_SCALER = Kind("the only gradient scaler", _called("GradScaler"))

KINDS: dict[str, Kind] = {
    **dict.fromkeys(("model", "net", "network"), MODEL),
    **dict.fromkeys(("optimizer", "opt"), OPTIMIZER),
    **dict.fromkeys(("train_loader", "train_dataloader", "dataloader", "data_loader", "trainloader", "loader"), LOADER),
    **dict.fromkeys(("scheduler", "lr_scheduler"), SCHEDULER),
    **dict.fromkeys(("criterion", "loss_fn"), _LOSS),
    "trainer": _TRAINER,
    "scaler": _SCALER,
}


def search(name: str, roots: Iterable[tuple[str, Mapping[str, Any]]]) -> list[tuple[Any, str]]:
    """Return candidates for `name` with their places; a single one is obvious."""
    kind = KINDS[name]
    found = list(walk(kind, roots))
    if kind is MODEL:
        found = outermost(found)
    named = [candidate for candidate in found if candidate[2] == name]
    return [(value, place) for value, place, _ in (named if len(named) == 1 else found)]


def walk(
    kind: Kind,
    roots: Iterable[tuple[str, Mapping[str, Any]]],
    max_objects: int = MAX_OBJECTS,
    max_depth: int = MAX_DEPTH,
) -> Iterator[Found]:
    """Yield objects of `kind`, breadth first, so that each is named by its shortest path."""
    matches: dict[type, bool] = {}
    seen: set[int] = set()
    queue: deque[tuple[Any, str, str, str, int]] = deque()
    for label, values in roots:
        for name, value in values.items():
            queue.append((value, f"{label.partition(' of ')[0]} `{name}`", label.partition(" of ")[2], name, 0))
    while queue and len(seen) < max_objects:
        value, what, place, last, depth = queue.popleft()
        kind_of_value = type(value)
        if issubclass(kind_of_value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        hit = matches.get(kind_of_value)
        if hit is None:
            hit = matches[kind_of_value] = kind.matches(kind_of_value)
        if hit:
            yield value, f"{what} of {place}", last
        elif depth < max_depth and _is_container(kind_of_value):
            for name, child in _children(value):
                if type(child) in _PLAIN:
                    continue  # most children of large containers: no path is made for them
                way = f"attribute `{name}` of {what}" if name.isidentifier() else f"item {name} of {what}"
                queue.append((child, way, place, name, depth + 1))


def attribute(trainer: Any, name: str) -> tuple[Any, str] | None:
    """Return the attribute of a trainer or of its `state`, and its path. Properties are called: Lightning's
    `global_step` is one."""
    own = attributes(trainer)
    if name in own:
        return own[name], f"attribute `{name}`"
    of_state = attributes(own.get("state"))
    if name in of_state:
        return of_state[name], f"attribute `{name}` of `state`"
    for kind in type(trainer).__mro__:
        if isinstance(kind.__dict__.get(name), property):
            try:
                return getattr(trainer, name), f"property `{name}`"
            except Exception:  # the job's own code: an exception means that there is no value now
                return None
    return None


def _is_container(kind: type) -> bool:
    module = kind.__module__.partition(".")[0]
    return kind in (list, tuple, dict) or (module not in ("builtins", "torch", "numpy") and not _is_module(kind))


def _children(value: Any) -> list[tuple[str, Any]]:
    kind = type(value)  # not isinstance, which reads __class__: a proxy runs its own code for that
    if kind in (list, tuple):
        return [(f"[{index}]", child) for index, child in enumerate(value[:MAX_CHILDREN])]
    held = value if issubclass(kind, dict) else attributes(value)
    return [(name, child) for name, child in items(held, MAX_CHILDREN) if type(name) is str]


def items(held: dict[Any, Any], most: int, *, newest: bool = False) -> list[tuple[Any, Any]]:
    """Return the first items of a dict, or the last ones, while other threads change it; empty if they do all the time.

    Before Python 3.12 the garbage collector may run while the list is made, and gives the GIL away."""
    for _ in range(TRIES):
        with suppress(RuntimeError):  # it changed its size
            listed = dict.items(held)
            return list(islice(reversed(listed), most))[::-1] if newest else list(islice(listed, most))
    return []


def attributes(value: Any) -> dict[Any, Any]:
    """Return its `__dict__` without calling its code; empty if it has none."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if issubclass(type(held), dict) else {}


def outermost(found: list[Found]) -> list[Found]:
    """Drop modules inside others, and modules without parameters, such as metrics."""
    inner: set[int] = set()
    trained: list[Found] = []
    for candidate in found:
        within = list(members(candidate[0]))
        inner.update(id(member) for member in within[1:])
        if any(vars(member).get("_parameters") for member in within):
            trained.append(candidate)
    return [candidate for candidate in trained or found if id(candidate[0]) not in inner]


def members(module: Any) -> Iterator[Any]:
    """Yield the module and all modules below it, as `modules()` does, without calling the job's code."""
    seen: set[int] = set()
    waiting = [module]
    while waiting:
        member = waiting.pop()
        if member is not None and id(member) not in seen:
            seen.add(id(member))
            yield member
            waiting.extend(vars(member).get("_modules", {}).values())


def unregistered(module: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield modules and parameters in the lists, tuples and dicts of a module, as `name.experts[0]`, of which torch
    knows nothing; also those that are registered elsewhere."""
    for attribute, value in items(vars(module), MAX_CHILDREN):
        if type(value) in (list, tuple, dict) and attribute not in _REGISTERED:
            held = value if type(value) is dict else dict(enumerate(value[:MAX_CHILDREN]))
            for key, child in items(held, MAX_CHILDREN):
                kind = type(child)
                if type(key) in (int, str) and kind not in _PLAIN and (_is_module(kind) or _is_parameter(kind)):
                    yield f"{name}.{attribute}[{key!r}]", child
