"""Long containers of the job and how fast they grow, for `python.containers`: a list of losses that is never emptied,
a module's hooks, or a sum of losses or a buffer written into that keeps their graphs.

A bounded search through the values of frames and globals; then lengths are read again and again for 0.4 s, and the
search is made again: a list that got shorter in between is emptied by the job, one that is not found again was dropped,
unless a longer one begins with its items: `history = history + [loss]` makes another one each time.
Reads `__dict__`, lists, tuples, sets, deques, dicts, and caches of functions without a bound, and of the newest items,
of a dict with their keys, whether they are tensors or hold some; of a model all of its modules, and the hooks of these
and their parameters. Calls no code of the job. Takes a few ms of the GIL on a thread of the recorder, in pieces of
microseconds: 0.3 ms a search, 4 ms where there is a model of 2,000 modules. Graphs of sums are read by the training
thread when a step has ended; where there are sums, once more at the end of a later one.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import islice
from operator import is_
from time import sleep
from types import FunctionType, MethodType
from typing import Any, NamedTuple
from weakref import ref

from ..names import frames
from ..names.candidates import attributes, items
from ..ring.table import MIB
from ..source import Recorder
from ..steps.running_sums import Holder, RunningSum, SumReader
from ..torch import inventory, loaded

__all__ = ["answer"]

READS = True
COLUMNS = ("place", "class", "items", "added", "period", "tensors", "graphs", "tensor_size", "size", "steps")
MAX_OBJECTS, MAX_DEPTH, MAX_CHILDREN = 20_000, 4, 100
#: Shorter containers are of no interest.
MIN_ITEMS = 16
#: But for hooks that are one function put there again and again.
MIN_ALIKE = 8
#: Of each container so many of the newest items are looked at.
MAX_ITEMS = 200
MAX_ROWS = 50
MAX_PARTS = 20
#: Of an exception so many frames are looked at.
MAX_FRAMES = 20
PAUSE_S, NUM_LOOKS = 0.4, 8
#: Searches for what has come in the place of a container that is gone.
NUM_SEARCHES = 3
#: So many tensors may be sums, and so long the second look waits for a step to end.
MAX_SUMS, WAIT_S = 200, 0.4
_GROWING = (list, dict, set, deque)
_TRACEBACK: Any = vars(BaseException)["__traceback__"]
_CACHE: Any = type(lru_cache(len))
#: What torch keeps of a module: its parts, and its hooks, of which those are long that a job adds in each step.
_PARTS = frozenset(
    (
        "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
    )
)  # fmt: skip
_HOOKS = frozenset(("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"))
_HOOKS_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_CALLED = frozenset((partial, MethodType, FunctionType))
_PLAIN = frozenset((str, bytes, bytearray, int, float, complex, bool, type(None), type))


class Found(NamedTuple):
    """A value that the search has come to, the way to it, how far that is, and how to get what is there later."""

    value: Any
    way: str
    depth: int
    holder: Holder | None = None


class Container(NamedTuple):
    """One that may grow, where it was found, and what its class is called."""

    held: Any
    place: str
    kind: str


class Held(NamedTuple):
    """The contents of a container's items, judged by the newest ones."""

    #: Of all items, how many hold tensors, and how many of these keep their graph.
    tensors: int
    graphs: int
    #: MiB of these tensors, and of the items.
    tensor_size: float
    size: float
    #: Whether all items that were looked at are exceptions: they keep the frames that they came through.
    exceptions: bool


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return a row for each of the longest containers, and for each sum that keeps graphs."""
    found, tensors = _found(recorder)
    before, steps = [_length(one.held) for one in found], recorder.num_steps
    early = _sums(recorder, tensors)
    late: SumReader | None = None
    lengths, shrunk = before, set[int]()
    for _ in range(NUM_LOOKS):
        sleep(PAUSE_S / NUM_LOOKS)
        last, lengths = lengths, [_length(one.held) for one in found]
        shrunk.update(at for at, length in enumerate(lengths) if length < last[at])
        if late is None and (long := _long(early.found)):
            late = _sums(recorder, [one for one in _found(recorder)[1] if one[1] in long])
    passed = recorder.num_steps - steps
    again, _ = _found(recorder)
    still = {id(one.held) for one in again}
    successors = _successors(recorder, found, again)
    listed: list[tuple[tuple[int, int, int], list[object]]] = []
    for at, (one, num) in enumerate(zip(found, lengths)):
        added = 0 if at in shrunk else num - before[at]
        container = one.held
        if id(container) not in still:
            container = successors.get(id(container), [])
            num, added = len(container), len(container) - num
        alike = one.kind == "hooks" and _are_alike(container)
        if num >= (MIN_ALIKE if alike else MIN_ITEMS):
            held = _held(container, num)
            kind = f"{one.kind} of exceptions" if held.exceptions else "hooks of one function" if alike else one.kind
            row = [one.place, kind, num, added, PAUSE_S, held.tensors, held.graphs, held.tensor_size, held.size, passed]
            listed.append(((-held.graphs, -added, -num), row))
    listed.sort(key=lambda one: one[0])
    early.withdraw()
    rows = [*([] if late is None else _of_sums(early, late)), *(row for _, row in listed)]
    return {"columns": COLUMNS, "rows": rows[:MAX_ROWS], "notes": []}


def _successors(recorder: Recorder, found: list[Container], again: list[Container]) -> dict[int, list[Any]]:
    """Return the longest list that begins with the items of one that is gone, by the id of that one. A metric puts a
    short one there for a moment: it is looked for some times."""
    still = {id(one.held) for one in again}
    gone = [one.held for one in found if type(one.held) is list and id(one.held) not in still]
    longest: dict[int, list[Any]] = {}
    for look in range(NUM_SEARCHES if any(len(held) >= MIN_ITEMS for held in gone) else 0):
        if look:
            sleep(PAUSE_S / NUM_LOOKS)
            again, _ = _found(recorder)
        by_first: dict[int, list[list[Any]]] = {}
        for one in again:
            if type(one.held) is list and (first := one.held[:1]):
                by_first.setdefault(id(first[0]), []).append(one.held)
        for held in gone:
            for other in by_first.get(id(next(iter(held), None)), ()):
                if _goes_on(held, other) and len(other) > len(longest.get(id(held), ())):
                    longest[id(held)] = other
    return longest


def _goes_on(held: list[Any], other: list[Any]) -> bool:
    """Return whether the other list is longer, and has the first items of this one and the last where this one does."""
    num = len(held)
    own, there = (one[:MIN_ITEMS] + one[num - 1 : num] for one in (held, other))
    return len(other) > num >= MIN_ITEMS and len(own) == len(there) and all(map(is_, own, there))


def _sums(recorder: Recorder, tensors: list[tuple[Holder, str]]) -> SumReader:
    return SumReader(
        recorder.at_step, tensors, lambda: recorder.num_steps, lambda: recorder.device.is_watched(), recorder.fail
    )


def _long(sums: Mapping[str, RunningSum]) -> set[str]:
    return {place for place, one in sums.items() if len(one.additions) >= MIN_ITEMS}


def _of_sums(early: SumReader, late: SumReader) -> list[list[object]]:
    """Rows of the sums that have grown since they were read a step or more before, and still hold what they held."""
    rows: list[list[object]] = []
    for place, one in late.wait(WAIT_S).items():
        before, num = early.found[place], len(one.additions)
        added, period = one.since(before), late.read_at - early.read_at
        if added and one.goes_back_to(before):
            rows.append([place, "Tensor", num, added, period, num, num, 0.0, 0.0, late.read_in - early.read_in])
    return rows


def _roots(recorder: Recorder) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return inventory.roots(recorder.step.thread, frames.user_frames)


def _found(recorder: Recorder) -> tuple[list[Container], list[tuple[Holder, str]]]:
    """Return the containers that the roots lead to, those in models by the model, others by their shortest way; and how
    to get the tensors that may have a graph: from where they are, which may hold another one by then, or if they still
    live."""
    torch: Any = loaded("torch")
    containers: list[Container] = []
    caches: list[tuple[Any, str]] = []
    tensors: list[tuple[Holder, str]] = []
    seen: set[int] = set()
    classes: set[type] = set()
    queue: deque[Found] = deque()
    module_class = getattr(loaded("torch.nn.modules.module"), "Module", ())
    for label, values in _roots(recorder):
        kind, _, place = label.partition(" of ")
        held = vars(sys.modules["__main__"]) if label == "global of __main__" else None
        queue.extend(
            Found(value, f"{kind} `{name}` of {place}", 0, None if held is None else partial(held.get, name))
            for name, value in list(values.items())
        )
    # Models first, those of the outermost frames before: `layer` of a function in it says little.
    queue.extendleft([one for one in queue if issubclass(type(one.value), module_class)])
    while queue and len(seen) < MAX_OBJECTS:
        value, way, depth, holder = queue.popleft()
        if type(value) in _PLAIN or id(value) in seen:
            continue
        seen.add(id(value))
        if issubclass(type(value), _GROWING):
            containers.append(Container(value, way, type(value).__name__))
        elif type(value) is _CACHE:
            caches.append((value, way))
        elif torch is not None and type(value) is torch.Tensor and len(tensors) < MAX_SUMS and value.requires_grad:
            tensors.append((holder or ref(value), way))
        if issubclass(type(value), module_class):
            queue.extendleft(_modules_of(value, way, depth))
            queue.extend(_put_on(value, way, depth))
            containers += _hooks_of(value, way)
        elif depth < MAX_DEPTH:
            queue.extend(Found(child, f"{name} of {way}", depth + 1, held) for name, child, held in _children(value))
        if type(value) not in classes and not _is_of_library(type(value)):
            classes.add(type(value))
            caches += [
                (one, f"`{name}` of class {kind.__qualname__}")
                for kind in type.mro(type(value))
                if not _is_of_library(kind)
                for name, one in list(vars(kind).items())
                if type(one) is _CACHE
            ]
    known: set[int] = set()
    for cache, way in caches:
        kept = None if id(cache) in known else _kept_by(cache)
        known.add(id(cache))
        if kept is not None:
            containers.append(Container(kept, f"cache of {way}", "lru_cache"))
    return containers, tensors


def _kept_by(cache: Any) -> dict[Any, Any] | None:
    """Return what a functools.lru_cache without a bound keeps. The method is asked of its class, where it is in C: the
    job may have put another one on the function."""
    if _CACHE.cache_info(cache).maxsize is not None:
        return None
    own = vars(cache)
    return next((held for held in gc.get_referents(cache) if type(held) is dict and held is not own), None)


def _is_of_library(kind: type) -> bool:
    module = kind.__module__  # the job may have put anything there
    return type(module) is str and module.partition(".")[0] in ("builtins", "torch", "numpy")


def _modules_of(module: Any, way: str, depth: int) -> Iterator[Found]:
    """Yield its modules, which are as near as itself."""
    for name, child in items(attributes(module).get("_modules", {}), MAX_CHILDREN):
        yield Found(child, _below(way, name), depth)


def _put_on(module: Any, way: str, depth: int) -> Iterator[Found]:
    """Yield what the job has put on a module, and those of its buffers that have a graph."""
    held = attributes(module)
    buffers, torch = held.get("_buffers", {}), loaded("torch")
    if issubclass(type(buffers), dict) and torch is not None:
        for name, child in items(buffers, MAX_CHILDREN):
            if type(child) is torch.Tensor and child.requires_grad:
                yield Found(child, f"buffer `{name}` of {way}", depth + 1, partial(dict.get, buffers, name))
    for name, child in items(held, MAX_CHILDREN):
        if name not in _PARTS and name not in _HOOKS:
            yield Found(child, f"attribute `{name}` of {way}", depth + 1, partial(dict.get, held, name))


def _below(way: str, name: str) -> str:
    """Return the way to a module in another one: "module `encoder.layers.0` of local `model` of main()"."""
    path, mark, rest = way.partition("` of ")
    return f"{path}.{name}{mark}{rest}" if path.startswith("module `") else f"module `{name}` of {way}"


def _hooks_of(module: Any, way: str) -> Iterator[Container]:
    held = attributes(module)
    for name in _HOOKS:
        if isinstance(hooks := held.get(name), dict) and dict.__len__(hooks):
            yield Container(hooks, f"`{name}` of {way}", "hooks")
    torch: Any = loaded("torch")
    for parameter, tensor in items(held.get("_parameters", {}), MAX_CHILDREN):
        if type(tensor) is torch.nn.Parameter:
            for name in _HOOKS_OF_PARAMETERS:
                if isinstance(hooks := getattr(tensor, name, None), dict) and dict.__len__(hooks):
                    yield Container(hooks, f"`{name}` of {_below(way, parameter)}", "hooks")


def _children(value: Any) -> list[tuple[str, Any, Holder | None]]:
    kind = type(value)
    if issubclass(kind, dict):
        listed = items(value, MAX_CHILDREN)
        return [
            (f"[{name!r}]", child, partial(dict.get, value, name)) if type(name) is str else ("an item", child, None)
            for name, child in listed
        ]
    if kind in (list, tuple, set, frozenset, deque):
        return [("an item", child, None) for child in list(islice(value, MAX_CHILDREN))]
    if _is_of_library(kind):
        return []
    held = attributes(value)
    return [(f"attribute `{name}`", child, partial(dict.get, held, name)) for name, child in items(held, MAX_CHILDREN)]


def _are_alike(hooks: Any) -> bool:
    """Return whether all hooks run the same code."""
    return len({id(_code_of(hook)) for hook in _newest(hooks)}) == 1


def _code_of(hook: Any) -> Any:
    """Return the code that a hook runs, the hook itself where that is not known. A partial is unwrapped in C."""
    for _ in range(MAX_DEPTH):
        if type(hook) is partial:
            hook = next((one for one in gc.get_referents(hook) if type(one) in _CALLED), None)
        elif type(hook) is MethodType:
            hook = hook.__func__
        else:
            break
    return hook.__code__ if type(hook) is FunctionType else hook


def _length(container: Any) -> int:
    """Return the number of items without calling what a class of the job makes of `len`."""
    return next(kind for kind in _GROWING if issubclass(type(container), kind)).__len__(container)


def _newest(container: Any) -> list[Any]:
    """Return the last items, of a set any, without calling the job's code and in one piece of microseconds."""
    kind = type(container)
    if issubclass(kind, list):
        return list(islice(list.__reversed__(container), MAX_ITEMS))
    if issubclass(kind, dict):
        return list(islice(reversed(dict.values(container)), MAX_ITEMS))
    if issubclass(kind, deque):
        return list(islice(deque.__reversed__(container), MAX_ITEMS))
    return list(islice(set.__iter__(container), MAX_ITEMS))


def _newest_keys(container: Any) -> list[Any]:
    return list(islice(reversed(dict.keys(container)), MAX_ITEMS))


def _held(container: Any, num: int) -> Held:
    torch: Any = loaded("torch")
    newest = _newest(container)
    known: set[int] = set()
    parts_of = [_locals_of(one, known) if _is_exception(one) else _parts(one) for one in newest]
    if issubclass(type(container), dict):  # keys may be objects, too, that the dict alone keeps
        parts_of = [parts + _parts(key) for parts, key in zip(parts_of, _newest_keys(container))]
    times = Counter(id(part) for parts in parts_of for part in parts)
    tensors = graphs = 0
    storages: dict[int, int] = {}
    holders: Counter[int] = Counter()
    of_objects = 0.0
    for parts in parts_of:
        own = [part for part in parts if times[id(part)] == 1]  # what several items lead to does not grow with them
        of_objects += sum(map(_size, own)) / MIB
        those = [part for part in parts if torch is not None and type(part) in (torch.Tensor, torch.nn.Parameter)]
        tensors += bool(those)
        graphs += any(map(inventory.keeps_graph, those))
        kept = dict(_storage(part) for part in those if times[id(part)] == 1)
        storages.update(kept)
        holders.update(kept.keys())
    # A storage that most items are views of does not grow with them, either.
    size = sum(size for key, size in storages.items() if holders[key] <= max(1, len(newest) // 2)) / MIB
    share = num / max(1, len(newest))
    return Held(
        round(tensors * share),
        round(graphs * share),
        size * share,
        (size + of_objects) * share,
        0 < sum(map(_is_exception, newest)) == len(newest),
    )


def _storage(tensor: Any) -> tuple[int, int]:
    """Return what tells the storage of a tensor from others, and its bytes: a view keeps all of it."""
    try:
        storage = tensor.untyped_storage()
        return int(storage._cdata), int(storage.nbytes())
    except (AttributeError, NotImplementedError, RuntimeError):  # old torch; sparse; in a transform of functorch
        return id(tensor), int(tensor.numel() * tensor.element_size())


def _is_exception(item: Any) -> bool:
    return issubclass(type(item), BaseException)


def _size(value: Any) -> int:
    """Return the bytes of an object without those that it refers to; 0 for one of the job's classes."""
    return sys.getsizeof(value) if type(value).__module__ in ("builtins", "numpy") else 0


def _parts(item: Any) -> list[Any]:
    """Return an item, or what a tuple, list, dict or object of one of the job's classes among the items holds."""
    kind = type(item)
    if issubclass(kind, tuple):
        return list(islice(tuple.__iter__(item), MAX_PARTS))
    if issubclass(kind, list):
        return list(islice(list.__iter__(item), MAX_PARTS))
    if issubclass(kind, dict):
        return list(islice(dict.values(item), MAX_PARTS))
    if kind in _PLAIN or _is_of_library(kind) or issubclass(kind, (set, frozenset, deque)):  # all of a long one at once
        return [item]
    parts: list[Any] = [item]
    for held in gc.get_referents(item)[:MAX_PARTS]:
        parts += islice(dict.values(held), MAX_PARTS) if type(held) is dict else [held]
    return [part for part in parts if not issubclass(type(part), type)]


def _locals_of(exception: Any, known: set[int]) -> list[Any]:
    """Return what the local variables hold of the frames that an exception came through, which it keeps, without what
    is `known`, which grows by it: a frame that still runs is in all of its exceptions."""
    found: list[Any] = []
    trace = _TRACEBACK.__get__(exception)
    for _ in range(MAX_FRAMES):
        if trace is None:
            break
        if trace.tb_frame.f_code.co_flags & frames.CO_OPTIMIZED:  # those of a module are its globals
            found += [part for value in frames.read(trace.tb_frame).values() for part in _parts(value)]
        trace = trace.tb_next
    new = [part for part in found if id(part) not in known]
    known.update(map(id, new))
    return list({id(part): part for part in new}.values())
