"""What the recorder needs of the target's torch, which is looked up in `sys.modules` and never imported."""

from __future__ import annotations

import sys
from types import ModuleType

__all__ = ["loaded"]


def loaded(name: str) -> ModuleType | None:
    """Return a module that the target has finished importing, torch's or another one; None otherwise."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if module is None or getattr(spec, "_initializing", False) else module
