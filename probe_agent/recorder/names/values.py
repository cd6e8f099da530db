"""Local variables as short text, for `probe … backtrace --locals`, without running any code of the job.

Runs on a thread of the recorder under the GIL, 2 to 10 µs a variable. Only exact builtin types, tensors and arrays
are looked into; of every other object the type is named, because its `__repr__`, `__len__` or attributes may be the
job's code. Secrets are recognised by the names of variables and keys, as everywhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import islice
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any

from ..guest.redaction import REDACTED, redacted_command, redacted_text, redacted_value
from .frames import read

__all__ = ["described", "locals_of"]

MAX_VARIABLES = 40
MAX_ITEMS = 6
MAX_DEPTH = 2
MAX_CHARS = 120
#: So much of a text is searched for secrets before it is shortened.
_SEARCHED_CHARS = 4096
_MAX_INT_BITS = 256
_PLAIN = (bool, float, complex, type(None), type(Ellipsis))
_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}"}
#: The interpreter's classes of locks, as the job's `_thread` has them; that of a carried recorder has its own.
_LOCKS = ("LockType", "RLock")
#: In the text that C makes of an RLock: its owner's number, and how often it has acquired it.
_OWNER = re.compile(r"owner=(\d+) count=(\d+)")
#: They would only repeat the source.
_LEFT_OUT = (ModuleType, FunctionType, BuiltinFunctionType, type)


def locals_of(frame: FrameType) -> dict[str, str]:
    """Return the local variables of a frame as text, in their order; of a module's frame those that hold values."""
    found = read(frame)
    at_module = frame.f_code.co_name == "<module>"
    shown: dict[str, str] = {}
    for name, value in found.items():
        if issubclass(type(value), _LEFT_OUT) or (at_module and name.startswith("__")):
            continue
        if len(shown) == MAX_VARIABLES:
            shown["…"] = f"{len(found) - MAX_VARIABLES} more"
            break
        shown[name] = described(name, value)
    return shown | _locks_in(frame, found)


def _locks_in(frame: FrameType, found: Mapping[str, Any]) -> dict[str, str]:
    """Return the locks that the function of a frame names as global variables, or as attributes of variables, or of
    their attributes: `self.pool.lock`."""
    names = frame.f_code.co_names
    of_module = {name: value for name in names if (value := dict.get(frame.f_globals, name)) is not None}
    locks = {name: value for name, value in of_module.items() if _is_lock(value)}
    holders = {name: value for name, value in {**of_module, **found}.items() if _may_have_locks(value)}
    for _ in range(2):
        members = {
            f"{variable}.{name}": member
            for variable, holder in holders.items()
            for name in names
            if _may_have_locks(member := _attribute(holder, name))
        }
        locks |= {name: value for name, value in members.items() if _is_lock(value)}
        holders = dict(islice(members.items(), MAX_VARIABLES))
    return {name: _of_lock(lock) for name, lock in islice(locks.items(), MAX_VARIABLES)}


def _may_have_locks(value: object) -> bool:
    return type(type(value)) is type and type(value).__module__ != "builtins"


def _attribute(holder: object, name: str) -> object:
    """Return what the dictionary of an object or of its classes has, without running code of the job.

    As `inspect.getattr_static` does, whose module would bring a thousand objects into the job."""
    of_classes = [vars(kind) for kind in type(holder).__mro__]
    own = next((names["__dict__"] for names in of_classes if "__dict__" in names), None)
    if type(own) is GetSetDescriptorType:
        attributes = own.__get__(holder)
        if type(attributes) is MappingProxyType:  # of a class with a metaclass
            of_classes.insert(0, attributes)
        elif (found := dict.get(attributes, name)) is not None:
            return found
    return next((names[name] for names in of_classes if name in names), None)


def described(name: str, value: object) -> str:
    """Return the value of the variable `name` as text, without secrets."""
    text = _text(name, value, 0)
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


def _text(name: str, value: Any, depth: int) -> str:
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind is int:
        return redacted_value(name, repr(value)) if value.bit_length() <= _MAX_INT_BITS else "int of many digits"
    if kind is str:
        return _of_text(name, value)
    if kind in (bytes, bytearray):
        return f"{kind.__name__} of {len(value)}"
    if kind in _BRACKETS:
        return _of_items(name, value, _BRACKETS[kind], depth)
    if kind is dict:
        return _of_dict(name, value, depth)
    if _is_lock(value):
        return _of_lock(value)
    return _of_array(value) or _of_object(value)


def _of_text(name: str, value: str) -> str:
    shown = redacted_value(name, value[:_SEARCHED_CHARS])
    if shown == REDACTED:
        return REDACTED
    if len(shown) <= MAX_CHARS and len(value) <= _SEARCHED_CHARS:
        return repr(shown)
    return f"{shown[: MAX_CHARS // 2]!r}… of {len(value)}"


def _of_items(name: str, value: Any, brackets: str, depth: int) -> str:
    if depth == MAX_DEPTH:
        return f"{type(value).__name__} of {len(value)}"
    items = list(islice(value, MAX_ITEMS))
    if items and all(type(item) is str for item in items):  # it may be a command line
        items = redacted_command([item[:_SEARCHED_CHARS] for item in items])
    shown = [_text(name, item, depth + 1) for item in items]
    more = [f"… {len(value)} in all"] if len(value) > MAX_ITEMS else []
    return brackets[0] + ", ".join(shown + more) + brackets[1]


def _of_dict(name: str, value: dict[Any, Any], depth: int) -> str:
    if depth == MAX_DEPTH:
        return f"dict of {len(value)}"
    items = list(islice(value.items(), MAX_ITEMS))
    shown = [
        f"{_text('', key, depth + 1)}: {_text(key if type(key) is str else name, item, depth + 1)}"
        for key, item in items
    ]
    more = [f"… {len(value)} in all"] if len(value) > MAX_ITEMS else []
    return "{" + ", ".join(shown + more) + "}"


def _of_array(value: Any) -> str | None:
    """Return shape, dtype and device of a tensor or array, if it is of a class whose attributes are torch's own."""
    kind = type(value)
    torch: Any = sys.modules.get("torch")
    exact = {getattr(torch, "Tensor", None), getattr(getattr(torch, "nn", None), "Parameter", None)}
    if kind in exact:
        dtype = str(value.dtype).rpartition(".")[2]
        return f"{kind.__name__}{_shape(value.shape)} {dtype} {value.device}"
    numpy: Any = sys.modules.get("numpy")
    if kind is getattr(numpy, "ndarray", None):
        return f"ndarray{_shape(value.shape)} {value.dtype.str}"
    return None


def _is_lock(value: object) -> bool:
    of_job: Any = sys.modules.get("_thread")
    kind = type(value)
    return any(kind is getattr(of_job, name, None) for name in _LOCKS) and kind.__module__ == "_thread"


def _of_lock(value: Any) -> str:
    """Return whether a lock is held, and by which thread. A plain lock does not know that: its number tells which other
    functions have it."""
    text = repr(value)
    owner = _OWNER.search(text)
    if owner is not None and int(owner[1]):
        thread: Any = getattr(sys.modules.get("threading"), "_active", {}).get(int(owner[1]))
        name = getattr(thread, "name", None) or "(unnamed)"
        return f"<RLock held by thread {name} ({owner[1]})>"
    number = f" {id(value):#x}" if type(value).__name__ == "lock" else ""
    return f"<{type(value).__name__}{number}, {'locked' if text.startswith('<locked') else 'unlocked'}>"


def _shape(shape: Any) -> str:
    return "(" + ", ".join(map(str, tuple(shape))) + ")"


def _of_object(value: object) -> str:
    """Return the type of an object; a metaclass of the job is not asked."""
    kind = type(value)
    module = type.__dict__["__module__"].__get__(kind)
    name = type.__dict__["__qualname__"].__get__(kind)
    if kind is MethodType:
        return f"<bound {redacted_text(str(getattr(value.__func__, '__qualname__', 'method')))}>"  # type: ignore[attr-defined]
    return f"<{name}>" if type(module) is not str or module in ("builtins", "__main__") else f"<{module}.{name}>"
