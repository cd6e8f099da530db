"""Lines that leak, for `probe … memory --leaks`: what they allocated in a bounded window and has not been freed.

In the window `tracemalloc` is on: the job's Python allocations take two to four times as long; `benchmarks.leaks`
measures whole steps. Five times the traces are copied and the tensors counted, each with the GIL held throughout:
0.1 s per million objects, which the answer tells. On a GPU torch's allocator keeps the stack of each block meanwhile.

Tracing ends with the window, when the client leaves, on detach and in a forked child; if the job traces itself, its
tracing is left on. A thread of the recorder waits meanwhile.
"""

from __future__ import annotations

import _tracemalloc
import gc
import sys
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, perf_counter, sleep
from typing import Any

from ..control.reply import Reply
from ..guest import fork_safety, switch_interval
from ..names import frames
from ..names.holders import holders
from ..ring.table import MIB
from ..source import Recorder
from ..torch import inventory, loaded
from ..torch.blocks import by_line, segments

__all__ = ["stream"]

COLUMNS = ("kind", "file", "lineno", "func", "num", "size", "more", "growth", "grows", "graphs", "holder")
MAX_S, MIN_STEPS, MAX_STEPS = 300.0, 3, 10_000
#: When lines are looked at, as shares of the window: each third, and at uneven times between them, so that memory which
#: rises and falls as often as the thirds is not always seen at the same height.
LOOKS_AT = (1 / 3, 0.55, 2 / 3, 0.85, 1.0)
POLL_S = 0.02
#: Frames that are kept of each allocation: the job's own line is the innermost that is in no library.
NUM_FRAMES = 12
#: Memory of the traces at which the window ends early.
MAX_TRACES_MIB = 64.0
#: Objects above which tensors are not counted: that would hold the GIL for too long.
MAX_OBJECTS = 5_000_000
MAX_ROWS = 200
NUM_EVENTS = 100_000
#: Lines that keep less are not sent, unless they grow.
NOTABLE_MIB = 0.001
#: Bit of a class whose objects have their `__dict__` before them.
_MANAGED_DICT = 4
#: How long a census may keep the GIL from other threads.
UNDISTURBED_S = 5.0
#: A line grows if it keeps more in each third, so many MiB or objects in all, in none much less than in the first, and
#: gives nearly nothing of it back between two looks.
MIN_MIB, MIN_NUM, STEADY, GIVEN_BACK = 0.01, 3, 0.25, 0.1
PYTHON, TENSOR = "python", "tensor"

#: File, line, function.
Line = tuple[str, int, "str | None"]
_one_at_a_time = allocate_lock()
#: The recorder's files, whether it was carried in or is installed.
_OUR_FILES = ("<probe>/", __file__.rpartition("/operations/")[0] or "<probe>/")


class _Kept:
    """Objects that one line keeps, in number and MiB; of tensors also how many keep a graph, and the newest one."""

    __slots__ = ("graphs", "mib", "newest", "num")

    def __init__(self) -> None:
        self.num = self.graphs = self.newest = 0
        self.mib = 0.0


Look = dict[tuple[str, Line], _Kept]


class _Window:
    """The window as far as it has come."""

    def __init__(self, recorder: Recorder) -> None:
        self._step = recorder.step
        self._first = recorder.step.number
        self._began = monotonic()
        self.looks: list[Look] = []
        #: Steps before the newest look.
        self.steps_seen = 0
        #: Steps, or seconds in a job without steps, before each look.
        self.lengths: list[float] = []
        self.pauses_s: list[float] = []
        self.notes: list[str] = []
        self.holders: dict[int, str] = {}

    @property
    def steps(self) -> int:
        return self._step.number - self._first

    @property
    def seconds(self) -> float:
        return monotonic() - self._began


def stream(recorder: Recorder, request: Mapping[str, Any], reply: Reply) -> Mapping[str, object]:
    """Send a note with the cost, then the lines."""
    steps, seconds = request.get("steps"), request.get("seconds")
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= MAX_S:
        return _error(f"invalid number of seconds {seconds!r}", f"use a number up to {MAX_S:g}")
    if steps is not None and (not isinstance(steps, int) or not MIN_STEPS <= steps <= MAX_STEPS):
        return _error(f"invalid number of steps {steps!r}", f"use {MIN_STEPS} to {MAX_STEPS:,}")
    if not _one_at_a_time.acquire(False):
        return _error("this target is already traced for leaks", "try again when that has ended")
    try:
        whole = f"{steps} steps, at most {seconds:g} s" if steps else f"{seconds:g} s"
        switch_interval.rest()  # loops over all traces would make the job's thread wait for the GIL all the time
        reply.send({"note": f"tracing for {whole}: the job's Python takes more time and memory until then"})
        window = _Window(recorder)
        with recorder.step.traced_by("leaks"), _tracing(window.notes), _device_history() as on_device:
            while len(window.looks) < len(LOOKS_AT) and _wait(window, reply, steps, float(seconds)):
                _look(window, recorder, on_device)
        if len(window.looks) < len(LOOKS_AT):
            return _cut_short(window, reply, steps)
        reply.send({"columns": COLUMNS, "rows": _rows(window)})
        longest, whole_s = max(window.pauses_s), sum(window.pauses_s)
        pause = f"the job stood still for {longest * 1e3:.0f} ms at the longest, {whole_s * 1e3:.0f} ms in all"
        return {
            "state": "finished",
            "steps": window.steps_seen,
            "seconds": window.seconds,
            "pause": longest,
            "notes": [pause, *window.notes],
        }
    finally:
        _one_at_a_time.release()


def _wait(window: _Window, reply: Reply, steps: int | None, seconds: float) -> bool:
    """Wait for the next look; return False if the window ends before."""
    # The time that looks take does not count, and they do not come one upon the other where the job is slow.
    done = len(window.looks)
    share = LOOKS_AT[done] - (LOOKS_AT[done - 1] if done else 0.0)
    next_look = monotonic() + seconds * share
    next_step = None if steps is None else steps * LOOKS_AT[done]
    while monotonic() < next_look if next_step is None else window.steps < next_step:
        if reply.cancelled() or (steps is not None and window.seconds > seconds):
            return False
        if _tracemalloc.get_tracemalloc_memory() / MIB > MAX_TRACES_MIB:
            window.notes.append(f"the window ended after {window.seconds:.1f} s: traces took {MAX_TRACES_MIB:.0f} MiB")
            return False
        sleep(POLL_S)
    return True


def _cut_short(window: _Window, reply: Reply, steps: int | None) -> Mapping[str, object]:
    if reply.cancelled():
        return {"state": "cancelled"}
    if window.notes and "traces took" in window.notes[-1]:
        return _error(f"no lines were found: {window.notes[-1]}", "use a shorter window: --seconds 1")
    return _error(
        f"{window.steps} of {steps} steps ended within {window.seconds:.0f} s",
        "use a window by time: --seconds 10; or see where it is: probe … backtrace",
    )


@contextmanager
def _tracing(notes: list[str]) -> Iterator[None]:
    """Have `tracemalloc` on, unless the job has it on itself, which stays as it is."""
    if _tracemalloc.is_tracing():
        notes.append("the job traces its allocations itself: lines from before the window are shown, too")
        yield
        return
    stop = _tracemalloc.stop
    fork_safety.watch(stop)  # a loader worker that starts now must not go on tracing
    try:
        _tracemalloc.start(NUM_FRAMES)
        yield
    finally:
        stop()
        fork_safety.forget(stop)


@contextmanager
def _device_history() -> Iterator[bool]:
    """Have torch's CUDA allocator keep stacks, unless it does already; yields whether a device is in use."""
    torch: Any = loaded("torch")
    if torch is None or not torch.cuda.is_initialized():
        yield False
        return
    already = getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)()
    if not already:
        torch.cuda.memory._record_memory_history("state", context="state", stacks="python", max_entries=NUM_EVENTS)
    try:
        yield True
    finally:
        if not already:
            torch.cuda.memory._record_memory_history(None)


def _look(window: _Window, recorder: Recorder, on_device: bool) -> None:
    """Note what each line keeps now."""
    look: Look = {}
    torch: Any = loaded("torch")
    is_last = len(window.looks) == len(LOOKS_AT) - 1
    window.steps_seen = window.steps
    window.lengths.append(float(window.steps) if recorder.step.is_training else window.seconds - sum(window.pauses_s))
    began = perf_counter()
    traces = _tracemalloc._get_traces()
    copied_s = perf_counter() - began
    lines: dict[int, Line | None] = {}  # equal traces are one object
    for _, size, trace, *_ in traces:
        if id(trace) not in lines:
            lines[id(trace)] = _own_line(trace)
        line = lines[id(trace)]
        if line is not None:
            _add(look, PYTHON, line, size / MIB)
    del traces
    counted_s = 0.0
    if torch is not None and sys.getallocatedblocks() <= MAX_OBJECTS:
        began = perf_counter()
        _undisturbed(lambda: _count_tensors(look, torch))
        counted_s = perf_counter() - began
    elif torch is not None and is_last:
        window.notes.append(f"tensors were not counted: there are more than {MAX_OBJECTS:,} objects")
    if on_device:
        for device, func, file, lineno, num, mib, *_ in by_line(segments(torch.cuda)):
            if file is not None:
                kept = look.setdefault((str(device), (str(file), int(str(lineno)), str(func))), _Kept())
                kept.num, kept.mib = int(str(num)), float(str(mib))
    window.looks.append(look)
    window.pauses_s += [copied_s, counted_s]
    if is_last and torch is not None:
        newest = {kept.newest for (kind, _), kept in look.items() if kind == TENSOR}
        window.holders = holders(newest, inventory.roots(recorder.step.thread, frames.user_frames))


def _undisturbed(act: Callable[[], None]) -> None:
    """Run `act` without giving the GIL away: the list of all objects must not keep alive what the job drops."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(UNDISTURBED_S)
    try:
        act()
    finally:
        sys.setswitchinterval(usual)


def _count_tensors(look: Look, torch: Any) -> None:
    """Add the tensors that were made in the window, by the line that made them. Attributes are read of torch's own
    classes only: those of others may run code of the job."""
    plain = (torch.Tensor, torch.nn.Parameter)
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, torch.Tensor)}
    tensors = [one for one in objects if type(one) in kinds]
    del objects
    trace_of = _trace_finder()
    for tensor in tensors:
        trace = trace_of(tensor)
        line = None if trace is None else _own_line(trace)
        if line is None:
            continue
        is_plain = type(tensor) in plain
        kept = _add(look, TENSOR, line, inventory.mib(tensor) if is_plain else 0.0)
        kept.graphs += is_plain and inventory.keeps_graph(tensor)
        kept.newest = id(tensor)


def _trace_finder() -> Callable[[object], Any]:
    """Return the function that finds where an object was made. That of Python 3.11 looks for objects with a `__dict__`
    in the wrong place; there the interpreter's own is called, by the address."""
    ctypes: Any = loaded("ctypes")
    if sys.version_info[:2] != (3, 11) or ctypes is None:
        return _tracemalloc._get_object_traceback
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_uint, ctypes.c_size_t)
    find = kind(("_PyTraceMalloc_GetTraceback", ctypes.pythonapi))
    pointer = ctypes.sizeof(ctypes.c_void_p)

    def trace_of(tensor: object) -> Any:
        has_dict = type(tensor).__flags__ >> _MANAGED_DICT & 1
        return find(0, id(tensor) - pointer * (2 + 2 * has_dict))  # the header of the collector, that of the dict

    return trace_of


def _add(look: Look, kind: str, line: Line, mib: float) -> _Kept:
    kept = look.setdefault((kind, line), _Kept())
    kept.num += 1
    kept.mib += mib
    return kept


def _own_line(trace: Any) -> Line | None:
    """Return the innermost line in no library, otherwise the innermost; None for the recorder's own allocations."""
    if any(file.startswith(_OUR_FILES) for file, _ in trace):
        return None
    own = next((frame for frame in trace if frames.is_user_file(frame[0])), None)
    file, lineno = own or trace[0]
    return (file, lineno, None)


def _rows(window: _Window) -> list[list[object]]:
    """Return the lines that keep more at the end of the window than at its first look, those that grow first."""
    rows = []
    for key, kept in window.looks[-1].items():
        history = [look.get(key, _Kept()) for look in window.looks]
        more, growth = kept.num - history[0].num, kept.mib - history[0].mib
        grows = _grows(history, window.lengths)
        if not grows and growth < NOTABLE_MIB and not (kept.graphs and more > 0):
            continue
        (kind, (file, lineno, func)) = key
        holder = window.holders.get(kept.newest) if kind == TENSOR else None
        rows.append([kind, file, lineno, func, kept.num, kept.mib, more, growth, grows, kept.graphs, holder])
    rows.sort(key=_order)
    return rows[:MAX_ROWS]


def _order(row: list[object]) -> tuple[object, ...]:
    """Lines that grow first; of these, tensors whose graph keeps others alive, and of them those that someone holds."""
    kind, growth, grows, graphs, holder = row[0], row[7], row[8], row[9], row[10]
    return not grows, not (graphs and holder), not (kind == TENSOR and graphs), -float(str(growth))


def _grows(history: list[_Kept], lengths: list[float]) -> bool:
    def steadily(looks: list[float], at_least: float) -> bool:
        if any(before - after > GIVEN_BACK * looks[-1] for before, after in zip(looks, looks[1:])):
            return False
        values = looks[::2]
        between = [max(after - before, 1e-9) for before, after in zip([0.0, *lengths[::2]], lengths[::2])]
        rates = [(after - before) / length for before, after, length in zip([0.0, *values], values, between)]
        return min(rates) > 0 and values[-1] >= at_least and min(rates[1:]) >= STEADY * rates[0]

    return steadily([kept.mib for kept in history], MIN_MIB) or (
        history[-1].graphs > 0 and steadily([float(kept.num) for kept in history], MIN_NUM)
    )


def _error(message: str, hint: str) -> Mapping[str, object]:
    return {"error": {"message": message, "hint": hint}}
