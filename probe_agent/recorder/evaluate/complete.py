"""Completion of a partly typed name.

Runs on the thread of the request; reads attributes and calls no code of the job but properties.
"""

from __future__ import annotations

import re
from typing import Any

from ..names.lookup import Lookup
from .session import Namespace

__all__ = ["matches"]

MAX_MATCHES = 200
_DOTTED = re.compile(r"(?:[^\W\d]\w*\.)*(?:[^\W\d]\w*)?\Z")


def matches(text: str, namespace: Namespace, lookup: Lookup) -> list[str]:
    """Return completions of the dotted name at the end of `text`, private names last."""
    found = _DOTTED.search(text)
    path, _, start = (found.group() if found else "").rpartition(".")
    names = _attributes(path, namespace, lookup) if path else [*namespace.assigned(), *lookup.known_names()]
    fitting = {name for name in names if name.startswith(start) and (start or not name.startswith("_"))}
    ordered = sorted(fitting, key=lambda name: (name.startswith("_"), name))
    return [f"{path}.{name}" if path else name for name in ordered[:MAX_MATCHES]]


def _attributes(path: str, namespace: Namespace, lookup: Lookup) -> list[str]:
    first, *rest = path.split(".")
    try:
        value: Any = namespace[first] if first in namespace else lookup.find(first)
        for name in rest:
            # A gradient is a tensor like its parameter, and may not be read here (steps/gradient_reader.py).
            value = value if name == "grad" else getattr(value, name)
        return [name for name in dir(value) if isinstance(name, str)]
    except Exception:
        return []
