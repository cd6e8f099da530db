"""What a hunt has seen of one step, and which module made the first value that is not finite.

Plain data and functions. A step is looked into only when something in it is not finite: on the training thread if it
ran on a CPU, otherwise on a thread of the recorder. Either takes microseconds per event, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

__all__ = [
    "BATCH", "FINITE", "GRAD", "GRADIENT", "INF", "INPUT", "LOSS", "MINUS_INF", "NAN", "OUTPUT", "VALUES", "Call",
    "Event", "Origin", "WatchedStep", "is_compiled", "modules_below", "origin_of",
]  # fmt: skip

#: What a tensor holds, by gravity.
FINITE, MINUS_INF, INF, NAN = range(4)
VALUES = ("finite", "-Infinity", "Infinity", "NaN")
#: What was looked at: a batch, the inputs and outputs of a module's call, the loss, a gradient on its way through the
#: graph, a parameter's gradient at the end of the step.
BATCH, INPUT, OUTPUT, LOSS, GRAD, GRADIENT = "batch", "input", "output", "loss", "grad", "gradient"
#: Bad events in an answer, and names in one sentence.
MAX_EVIDENCE, MAX_NAMES = 12, 3


class Call:
    """One call of a module."""

    __slots__ = ("has_grad", "is_recomputed", "module", "number", "own", "parent", "pending")

    def __init__(self, module: Any, parent: int | None, number: int, has_grad: bool, is_recomputed: bool) -> None:
        self.module = module
        #: Index of the call around it.
        self.parent = parent
        #: Which call of this module it is in the step, from 1 on.
        self.number = number
        self.has_grad = has_grad
        #: Forward inside backward: its values were seen in the first forward.
        self.is_recomputed = is_recomputed
        #: Its own parameters and buffers that are not finite.
        self.own: list[str] = []
        #: The same of which nothing is known yet, with their numbers on the device.
        self.pending: list[tuple[str, tuple[int, ...]]] = []


class Event:
    """One look at some tensors. `subject` is the index of a call, the number of a graph's node, or a name."""

    __slots__ = ("pending", "status", "subject", "what")

    def __init__(self, what: str, subject: Any, status: int = FINITE, pending: tuple[int, ...] = ()) -> None:
        self.what = what
        self.subject = subject
        self.status = status
        #: Numbers of those that are still on the device.
        self.pending = pending


class Origin(NamedTuple):
    """Where the first value came from that is not finite."""

    #: data, input (of the outermost module), forward, loss, backward, or gradient.
    kind: str
    modules: tuple[str, ...]
    #: Made in the module's own code, next to this module below it.
    beside: str | None
    value: str
    #: What came in: the module's input, or in backward the gradients of its output.
    came_in: str
    #: The module's parameters and buffers that are not finite.
    own: tuple[str, ...]
    call: int
    num_calls: int
    has_grad: bool
    is_compiled: bool
    #: Parameters whose gradients are not finite, of those that were looked at.
    gradients: tuple[str, ...]
    evidence: tuple[tuple[str, str, str], ...]


class WatchedStep:
    """The calls and events of one step, in the order in which they came."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: list[Call] = []
        self.events: list[Event] = []
        #: Calls that have a graph's node among their inputs, and among their outputs.
        self.takers: dict[int, list[int]] = {}
        self.makers: dict[int, list[int]] = {}
        #: GradScaler has skipped the optimizer: infinite gradients are part of its search.
        self.skipped = False
        self.num_unseen = 0

    def key(self, event: Event) -> object:
        """Return what stays the same from step to step."""
        if event.what in (INPUT, OUTPUT):
            call = self.calls[event.subject]
            return event.what, id(call.module), call.number, event.status
        return event.what, event.subject if event.what == GRADIENT else None, event.status

    def bad(self) -> list[Event]:
        return [event for event in self.events if event.status]

    @property
    def is_harmed(self) -> bool:
        """Whether the step came to a bad end, not just through an infinite mask or an unused NaN."""
        has_loss = any(event.what == LOSS for event in self.events)
        for event in self.bad():
            if event.what == LOSS or (event.what in (GRAD, GRADIENT) and not self.skipped):
                return True
            if event.what == OUTPUT and event.status == NAN:
                call = self.calls[event.subject]
                if call.parent is None and not (has_loss and call.has_grad) and _has_parameters(call.module):
                    return True
        return False


def origin_of(step: WatchedStep, usual: Collection[object], is_batch_bad: bool) -> Origin:
    """Return the origin of what harmed a step; `usual` are keys of events that harmed no earlier one, `is_batch_bad`
    says whether one of the newest batches was not finite."""
    bad = [event for event in step.bad() if not (step.skipped and event.what in (GRAD, GRADIENT))]
    strange = [event for event in bad if step.key(event) not in usual] or bad
    # The mask of an attention is -inf in a healthy job, too.
    clear = [event for event in strange if event.status > MINUS_INF or event.what not in (INPUT, OUTPUT)]
    first = (clear or strange)[0]
    names = _names(step)

    def name(index: int) -> str:
        return names[id(step.calls[index].module)]

    kind, came_in = first.what, VALUES[FINITE]
    modules: tuple[str, ...] = ()
    beside: str | None = None
    made_by: int | None = None
    if first.what == BATCH:
        kind = "data"
    elif first.what == INPUT:
        parent = step.calls[first.subject].parent
        if parent is None:
            kind, modules = "data" if is_batch_bad else "input", (name(first.subject),)
        else:
            kind, made_by = "forward", _visible(step, parent)
            beside = f"before {name(first.subject)}" if made_by == parent else None
    elif first.what == OUTPUT:
        kind, made_by = "forward", _visible(step, first.subject)
    elif first.what == GRAD:
        kind = "backward"
        found, is_beside = _makers_in_backward(step, first)
        seen = list(dict.fromkeys(_visible(step, index) for index in found))
        modules = tuple(dict.fromkeys(name(index) for index in seen))[:MAX_NAMES]
        made_by = seen[0] if len(seen) == 1 else None
        if is_beside is not None and seen == found:
            beside = f"after {name(is_beside)}"
    if made_by is not None and kind == "forward":
        modules = (name(made_by),)
        came_in = VALUES[max((e.status for e in step.events if e.what == INPUT and e.subject == made_by), default=0)]
    call = None if made_by is None else step.calls[made_by]
    return Origin(
        kind,
        modules,
        beside,
        VALUES[first.status],
        came_in,
        () if call is None else tuple(call.own),
        0 if call is None else call.number,
        0 if call is None else sum(one.module is call.module and not one.is_recomputed for one in step.calls),
        call is None or call.has_grad,
        call is not None and is_compiled(call.module),
        tuple(str(event.subject) for event in bad if event.what == GRADIENT),
        tuple(_evidence(step, bad[:MAX_EVIDENCE], names)),
    )


def _makers_in_backward(step: WatchedStep, first: Event) -> tuple[list[int], int | None]:
    """Return the calls that may have made the first bad gradient: the innermost ones that took this tensor and whose
    outputs got finite gradients. If none did, the code that used it was that of the module around its maker: then also
    the maker."""
    seen: dict[int, int] = {}
    for event in step.events:
        if event is first:
            break
        if event.what == GRAD:
            seen[event.subject] = max(event.status, seen.get(event.subject, FINITE))
    made: dict[int, list[int]] = {}
    for position, makers in step.makers.items():
        for index in makers:
            made.setdefault(index, []).append(position)

    def got_finite(index: int) -> bool:
        known = [seen[position] for position in made.get(index, ()) if position in seen]
        return bool(known) and not max(known)

    takers = [index for index in step.takers.get(first.subject, ()) if got_finite(index)]
    around = {above for index in takers for above in _above(step, index)}
    if innermost := [index for index in takers if index not in around]:
        return innermost, None
    for maker in step.makers.get(first.subject, ()):
        for above in _above(step, maker):
            if got_finite(above):
                return [above], maker
    return [], None


def _above(step: WatchedStep, index: int) -> Iterable[int]:
    parent = step.calls[index].parent
    while parent is not None:
        yield parent
        parent = step.calls[parent].parent


def _visible(step: WatchedStep, index: int) -> int:
    """Return the call, or the outermost compiled one around it: what a compiled module calls has no name in the job."""
    around = [one for one in (index, *_above(step, index)) if is_compiled(step.calls[one].module)]
    return around[-1] if around else index


def _names(step: WatchedStep) -> dict[int, str]:
    """Return the names of the modules that were called: the class of the outermost one and the path below it."""
    names: dict[int, str] = {}
    roots = [call.module for call in step.calls if call.parent is None]
    roots.sort(key=lambda root: len(list(modules_below(root))), reverse=True)  # one may be a part of another one
    for root in roots:
        if id(root) not in names:
            for path, module in modules_below(root):
                names.setdefault(id(module), f"{type(root).__name__}{path}")
    for call in step.calls:
        if id(call.module) not in names:  # not registered below its caller
            above = None if call.parent is None else names.get(id(step.calls[call.parent].module))
            names[id(call.module)] = f"{above}.{type(call.module).__name__}" if above else type(call.module).__name__
    return names


def modules_below(root: Any) -> Iterable[tuple[str, Any]]:
    """Yield a module and all modules below it, each once, with the path that leads to it."""
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop(0)
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            yield path, module
            waiting += [(f"{path}.{key}", one) for key, one in list(vars(module).get("_modules", {}).items())]


def _has_parameters(module: Any) -> bool:
    return any(vars(one).get("_parameters") for _, one in modules_below(module))


def is_compiled(module: Any) -> bool:
    """Return whether a module is compiled: what it calls is not the job's own modules."""
    held = vars(module)
    return "_orig_mod" in held.get("_modules", {}) or held.get("_compiled_call_impl") is not None


def _evidence(step: WatchedStep, bad: Iterable[Event], names: dict[int, str]) -> Iterable[tuple[str, str, str]]:
    """Yield what was not finite, in order: what, where, and the value."""
    for event in bad:
        where = ""
        if event.what in (INPUT, OUTPUT):
            where = names[id(step.calls[event.subject].module)]
        elif event.what == GRAD:
            makers = step.makers.get(event.subject) or step.takers.get(event.subject, [])
            where = names[id(step.calls[makers[0]].module)] if makers else ""
        elif event.what == GRADIENT:
            where = str(event.subject)
        told = {
            INPUT: "input of",
            OUTPUT: "output of",
            GRAD: "gradient at the output of" if step.makers.get(event.subject) else "gradient at the input of",
            GRADIENT: "gradient of",
            BATCH: "batch",
            LOSS: "loss",
        }[event.what]
        yield told, where, VALUES[event.status]
