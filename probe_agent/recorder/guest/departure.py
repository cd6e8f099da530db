"""End of the recorder's thread: the recorder's objects are freed, and the process may exit.

Modules, functions and classes refer to each other in cycles, which only Python's collector frees. After a while they
are in its oldest generation, and a job that has not collected that one before it exits takes longer to exit. So they
are moved to the youngest generation, and that one and the next are collected. Python itself decides what is garbage:
an object that the job still refers to stays, with everything it refers to.

Runs on the recorder's thread for about 25 ms. The collection holds the GIL for 3 ms of them, 5 ms in a program that
has loaded so little itself that the recorder has loaded much of the standard library.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import sys
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from functools import partial
from os import close, write
from types import FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from . import at_exit, switch_interval

if TYPE_CHECKING:
    from _thread import LockType

    from ..importing import Importer
    from ..runtime import Runtime

__all__ = ["prepare"]

#: More than the recorder has: one of its objects leads to the job's. Then all are left to the job's collections.
MAX_OBJECTS = 60_000
#: Modules of the built-in types whose objects may lead from one of the recorder's to another.
_BUILT_IN = {"builtins", "_frozen_importlib", "_frozen_importlib_external"}
#: Not the attribute: a metaclass of the job may have code for that.
_module_of = type.__dict__["__module__"].__get__
#: Flags of a foreign function: the calling convention of C, called with the GIL held.
_CDECL, _WITH_GIL = 1, 4


def prepare(importer: Importer, runtime: Runtime | None) -> Callable[[], None]:
    """Close the importer and return the last function of this thread. The caller forgets the recorder, then calls it.

    Nothing is freed early where Python has no `_ctypes`, or where a collection prints or keeps what it finds because
    of the job's `gc.set_debug`.
    """
    farewells = [(connection.detach(), answer) for connection, answer in runtime.farewells()] if runtime else []
    exit_locks = at_exit.hand_over()
    move: tuple[Any, ...] = ()
    found: list[Any] = []
    try:
        if not at_exit.is_ending() and not gc.get_debug():
            move = _untrack_and_track(importer)
        loaded = importer.close(at_exit.is_ending())
        if move:
            found = _reachable(importer, runtime, loaded)
    except Exception:  # the border: a client and an exit wait for this thread, and nothing can be recorded any more
        move = ()
    interval = round(switch_interval.SHORT_S * 1e6), switch_interval.usual_s
    # Without the globals of this module, which would keep the recorder alive.
    tools = {"atexit": atexit, "gc": gc, "get_ident": get_ident, "sys": sys, "write": write, "close": close}
    last = FunctionType(_last.__code__, {"__builtins__": vars(builtins), **tools})
    # Python frees an ended thread without holding the GIL. With `-X dev` that aborts a process that finalizes at that
    # instant, so at an exit this thread sleeps until the process is gone.
    never = allocate_lock() if at_exit.is_ending() else None
    return partial(last, found, move, farewells, exit_locks, interval, never)


def _last(
    found: list[Any],
    move: tuple[Any, ...],
    farewells: list[tuple[int, bytes]],
    exit_locks: list[Any],
    interval: tuple[int, float],
    never: LockType | None,
) -> None:
    try:
        try:
            while found:
                part = found[-500:]
                del found[-500:]
                # In C from end to end: no other thread sees an object while it is in no generation.
                all(zip(*[map(function, part) for function in move]))
                part.clear()
            # Otherwise the job collects when it wants to, and may have much in that generation; ours goes with it then.
            # The next one, too: a collection of the job's that came while they moved has put the first ones there.
            if move and gc.isenabled() and 0 < gc.get_threshold()[0] <= 10_000:
                gc.collect(1)
        finally:
            # What a finalizer of the job's may have made here by asking for the current thread.
            active = getattr(sys.modules.get("threading"), "_active", {})
            if type(active.get(get_ident())).__name__ == "_DummyThread":
                del active[get_ident()]
            short_us, usual_s = interval
            if round(sys.getswitchinterval() * 1e6) == short_us:  # the job has set no other
                sys.setswitchinterval(usual_s)
        # Last: whoever reads the answer finds the job as it was.
        for descriptor, answer in farewells:
            try:  # noqa: SIM105 -- `suppress` would be one of the objects to free
                write(descriptor, answer)
            except OSError:
                pass  # the client has left
            close(descriptor)
    finally:
        # Before, `atexit` does not keep alive what it is calling: the lock would be freed while an exit waits for it.
        if sys.version_info >= (3, 10, 2):
            atexit.unregister(exit_locks[0].acquire)
        if never:
            never.acquire()
        for lock in exit_locks:
            lock.release()
        if never:
            never.acquire()


def _untrack_and_track(importer: Importer) -> tuple[Any, ...]:
    """Return the functions of CPython that take an object out of its generation and put it into the youngest."""
    try:
        ctypes = importer.load("_ctypes")
        program = ctypes.dlopen(None, 0)
        addresses = [ctypes.dlsym(program, f"PyObject_GC_{name}") for name in ("UnTrack", "Track")]
    except Exception:  # also what an audit hook of the job raises, which forbids it
        return ()
    function = type("Function", (ctypes.CFuncPtr,), {"_flags_": _CDECL | _WITH_GIL, "_restype_": None})
    kind = type("Object", (ctypes._SimpleCData,), {"_type_": "O"})
    functions = tuple(map(function, addresses))
    for each in functions:
        each.argtypes = (kind,)
    return functions


def _reachable(importer: Importer, runtime: Runtime | None, loaded: dict[str, ModuleType]) -> list[Any]:
    """Return the objects reachable from the recorder's modules and `runtime` that may be the recorder's own."""
    private = [module for name, module in loaded.items() if sys.modules.get(name) is not module]
    first = type(importer).close.__globals__
    spaces = {id(space) for space in [first, *map(vars, private)]}
    names = {*loaded, *_BUILT_IN, first["__name__"]}

    def may_be_ours(one: Any) -> bool:
        kind = type(one)
        if kind is ModuleType:
            return id(vars(one)) in spaces
        if kind is dict and "__builtins__" in one:
            return id(one) in spaces
        try:
            module = _module_of(one if issubclass(kind, type) else kind)
        except AttributeError:
            return False  # ours have one, a class of the job may have none
        return kind is not FrameType and type(module) is str and module in names

    found: list[Any] = []
    new: list[Any] = [importer, runtime, *private]
    seen = set(map(id, new))
    while new and len(found) <= MAX_OBJECTS:
        found += filter(gc.is_tracked, new)
        led_to, new = gc.get_referents(*new), []
        for one in led_to:
            if id(one) not in seen and gc.is_tracked(one):
                seen.add(id(one))
                if may_be_ours(one):
                    new.append(one)
    return [] if new else found
