"""One file a rule: `RULE`, its statement, its judge and its page (the docstring). Rules do not know each other."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from probe_cli.diagnose.rule import Rule

__all__ = ["page", "rules"]


@cache
def rules() -> dict[str, Rule]:
    """All rules by name, in the order of their families and names."""
    found = [importlib.import_module(f"{__name__}.{one.name}").RULE for one in pkgutil.iter_modules(__path__)]
    return {rule.name: rule for rule in sorted(found, key=lambda rule: (rule.family, rule.name))}


def page(name: str) -> str:
    """What the file of a rule says of it."""
    text = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").__doc__
    assert text
    return text.strip()
