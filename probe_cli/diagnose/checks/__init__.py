"""One file a check: `CHECK`, its statement, and what it reads in the rows. Checks do not know each other."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from probe_cli.diagnose.check import Check

__all__ = ["checks"]

#: The order of the list; those that are not named come behind these.
ORDER = ("versions", "ranks", "seeds", "debug-flags", "precision", "compile", "model", "data-loader", "threads")


@cache
def checks() -> dict[str, Check]:
    """All checks by name, in the order of the list."""
    found = [importlib.import_module(f"{__name__}.{one.name}").CHECK for one in pkgutil.iter_modules(__path__)]
    order = {name: at for at, name in enumerate(ORDER)}
    return {check.name: check for check in sorted(found, key=lambda check: (order.get(check.name, 99), check.name))}
