"""Namespace of evaluated code: its own names first, all others looked up in the job on demand.

Runs on the thread of the code. A value that is looked up is never stored here, so a session keeps alive only what the
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
    """The lookup that serves a namespace now; each evaluation of a session brings its own."""

    def __init__(self) -> None:
        self.lookup: Lookup | None = None


class Namespace(dict):  # type: ignore[type-arg]
    """Globals and locals of evaluated code; being a subclass of dict, CPython calls `__missing__` at every depth."""

    def __init__(self) -> None:
        super().__init__(__name__=MODULE_NAME)
        self.scope = _Scope()
        self["__builtins__"] = _Builtins(self.scope)
        #: Notes about names that were sent already.
        self.told: set[str] = set()
        #: Names under which linecache has the code of this namespace.
        self.files: list[str] = []

    def __missing__(self, name: str) -> Any:
        lookup = self.scope.lookup
        if lookup is None or (name.startswith("__") and name != "__file__"):
            raise KeyError(name)  # such as __annotations__, which CPython itself looks up
        return lookup.find(name)

    def assigned(self) -> set[str]:
        """Return the names that the code has assigned."""
        return set(self) - {"__name__", "__builtins__", "__annotations__", "__warningregistry__", "_"}


class _Builtins(dict):  # type: ignore[type-arg]
    """Builtins of evaluated code: read last, and first by class bodies, whose names skip a subclass of dict."""

    def __init__(self, scope: _Scope) -> None:
        super().__init__(vars(builtins))
        self._scope = scope
        self["__import__"] = _import
        self["input"] = _no_input
        # The functions of `site` close sys.stdin, which belongs to the job.
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
    """Import for evaluated code; a first import of `threading` keeps the main thread the main thread."""
    known = "threading" in sys.modules
    try:
        return builtins.__import__(name, *arguments, **options)
    finally:
        if not known:
            repair_threading()


def _no_input(prompt: object = "") -> str:
    raise EOFError("evaluated code has no standard input: sys.stdin belongs to the job")


def _exit(code: object = None) -> None:
    raise SystemExit(code)


class Holder(Protocol):
    """Owner of the only reference to a namespace besides those of its code."""

    namespace: Namespace


def drop(holder: Holder) -> None:
    """Free the values that an anonymous evaluation assigned, now and without the garbage collector.

    Functions refer to the namespace that refers to them. The namespace is emptied if those are the only references;
    it stays whole if the code left something that lives on (a hook, a thread).
    """
    functions = [value for value in holder.namespace.values() if isinstance(value, FunctionType)]
    functions += [
        method
        for value in holder.namespace.values()
        if isinstance(value, type) and value.__module__ == MODULE_NAME
        for method in vars(value).values()
        if isinstance(method, FunctionType)
    ]
    # By index and attribute: a variable would add a reference, an argument one or two, depending on the version.
    places = [index for index in range(len(functions)) if functions[index].__globals__ is holder.namespace]
    alone = all(sys.getrefcount(functions[index]) == 3 for index in places)  # its name, the list, the question
    if alone and sys.getrefcount(holder.namespace) == len(places) + 2:
        holder.namespace.clear()
