"""The tables that a recorder of our own version may write, whether or not a target has rows of them yet.

Runs in the host server, once: it imports the recorder's hooks, samplers and operations for their declarations and
starts nothing.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from types import ModuleType

from probe_agent.recorder.ring.table import Table

__all__ = ["recorded_tables"]


@cache
def recorded_tables() -> dict[str, type[Table]]:
    """All of them by name."""
    modules = [import_module(f"probe_agent.recorder.{name}") for name in ("guest.failures", "steps.ends")]
    for folder in ("hooks", "samplers", "operations"):
        package = import_module(f"probe_agent.recorder.{folder}")
        modules += [import_module(i.name) for i in pkgutil.iter_modules(package.__path__, package.__name__ + ".")]
    found = {table.name: table for module in modules for table in _declared_in(module)}
    return dict(sorted(found.items()))


def _declared_in(module: ModuleType) -> list[type[Table]]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Table) and value.__module__ == module.__name__
    ]
