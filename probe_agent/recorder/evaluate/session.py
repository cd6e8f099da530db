"""The namespace of eval code: its own names first, everything else looked up in the job when it is asked for.

Runs on the thread of the code. What is looked up is never stored here, so a session keeps alive only what the
user assigned.
"""

from __future__ import annotations

import builtins
import sys
from types import FunctionType
from typing import Any, Protocol

from ..guest.main_thread import repair_threading
from ..names.lookup import Lookup

__all__ = ["MODULE_NAME", "Namespace", "drop"]

MODULE_NAME = "__probe_eval__"


class _Scope:
    """Which look-up serves a namespace now; each eval in a session brings its own."""

    def __init__(self) -> None:
        self.lookup: Lookup | None = None


class Namespace(dict):  # type: ignore[type-arg]
    """Globals and locals of eval code. A subclass, so CPython asks `__missing__` at every depth of the code."""

    def __init__(self) -> None:
        super().__init__(__name__=MODULE_NAME)
        self.scope = _Scope()
        self["__builtins__"] = _Builtins(self.scope)
        #: What was said about a name is not said again.
        self.told: set[str] = set()
        #: The files that linecache knows the code of this namespace by.
        self.files: list[str] = []

    def __missing__(self, name: str) -> Any:
        lookup = self.scope.lookup
        if lookup is None or (name.startswith("__") and name != "__file__"):
            raise KeyError(name)  # such as __annotations__, which CPython itself asks for
        return lookup.find(name)

    def assigned(self) -> set[str]:
        """The names that the code has assigned."""
        return set(self) - {"__name__", "__builtins__", "__annotations__", "__warningregistry__", "_"}


class _Builtins(dict):  # type: ignore[type-arg]
    """Asked last, and by the body of a class, whose names CPython does not look up in a subclass of dict."""

    def __init__(self, scope: _Scope) -> None:
        super().__init__(vars(builtins))
        self._scope = scope
        self["__import__"] = _import
        self["input"] = _no_input
        # Those of `site` close sys.stdin, which is the job's.
        self["exit"] = self["quit"] = _exit

    def __missing__(self, name: str) -> Any:
        lookup = self._scope.lookup
        if lookup is None:
            raise KeyError(name)
        try:
            return lookup.find(name)
        except KeyError:
            message = lookup.not_found(name)
        raise NameError(message)


def _import(name: str, *arguments: Any, **options: Any) -> Any:
    """`import` of eval code; when it brings in `threading`, the main thread stays the main thread."""
    known = "threading" in sys.modules
    try:
        return builtins.__import__(name, *arguments, **options)
    finally:
        if not known:
            repair_threading()


def _no_input(prompt: object = "") -> str:
    raise EOFError("eval code has no standard input: that of the process belongs to the job")


def _exit(code: object = None) -> None:
    raise SystemExit(code)


class Holder(Protocol):
    """Whoever has the only reference to a namespace that is not the code's own."""

    namespace: Namespace


def drop(holder: Holder) -> None:
    """Free what an anonymous eval assigned, now and without the garbage collector.

    Functions refer to the namespace that refers to them. When all references to it are theirs, and theirs are
    its own, it is emptied. When the code left something behind that lives on (a hook, a thread), it stays whole.
    """
    functions = [value for value in holder.namespace.values() if isinstance(value, FunctionType)]
    functions += [
        method
        for value in holder.namespace.values()
        if isinstance(value, type) and value.__module__ == MODULE_NAME
        for method in vars(value).values()
        if isinstance(method, FunctionType)
    ]
    # By index and attribute: a variable would be one more reference, an argument one or two by version.
    places = [index for index in range(len(functions)) if functions[index].__globals__ is holder.namespace]
    alone = all(sys.getrefcount(functions[index]) == 3 for index in places)  # its name, the list, the question
    if alone and sys.getrefcount(holder.namespace) == len(places) + 2:
        holder.namespace.clear()
