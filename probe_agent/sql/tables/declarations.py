"""Declarations of all tables: those that a recorder of this version may write, and the live ones.

Runs in the host server and in query workers, once each: the recorder's hooks, samplers and operations are imported for
their declarations, and nothing is started.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from probe_agent.recorder.ring.table import Column, Table
from probe_agent.targets import Target

from . import (
    audit,
    gpu,
    host_disks,
    host_kernel_log,
    host_network,
    host_pressure,
    memory,
    process,
    python,
    stalls,
    startup,
    torch,
)
from .live_table import LiveTable

__all__ = ["known_tables", "live_tables", "recorded_tables"]

T = TypeVar("T", bound=Table)


@cache
def recorded_tables() -> dict[str, type[Table]]:
    """Return the recorded tables by name, even if no target has rows of them yet."""
    modules = [import_module(f"probe_agent.recorder.{name}") for name in ("guest.failures", "steps.ends")]
    for folder in ("hooks", "samplers", "operations"):
        package = import_module(f"probe_agent.recorder.{folder}")
        modules += [import_module(i.name) for i in pkgutil.iter_modules(package.__path__, package.__name__ + ".")]
    return _declared_in(modules, Table)


@cache
def live_tables() -> dict[str, type[LiveTable]]:
    """Return the live tables by name."""
    hosts = (gpu, host_disks, host_kernel_log, host_network, host_pressure)
    return _declared_in((audit, *hosts, memory, process, python, stalls, startup, torch), LiveTable)


def known_tables(targets: Sequence[Target]) -> dict[str, Sequence[Column]]:
    """Return the columns of every table by name: recorded, live, or found in a ring of another version."""
    known: dict[str, Sequence[Column]] = {name: table.columns for name, table in recorded_tables().items()}
    known.update({name: table.columns for name, table in live_tables().items()})
    for target in targets:
        for name in target.ring_tables:
            known.setdefault(name, ())  # its rings say what its columns are
    return dict(sorted(known.items()))


def _declared_in(modules: Sequence[ModuleType], kind: type[T]) -> dict[str, type[T]]:
    found = {
        value.name: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, kind) and value.__module__ == module.__name__
    }
    return dict(sorted(found.items()))
