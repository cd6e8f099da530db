"""Names of modules: the class of the outermost module and the path below it, `GPT.blocks.0.attn`.

Runs on the training thread: one lookup in `known` per module call.
"""

from __future__ import annotations

from typing import Any, Callable
from weakref import ref

__all__ = ["ModuleNames"]


class ModuleNames:
    """Names by identity; an entry ends with its module, so a reused address cannot inherit a name."""

    def __init__(self, number_of: Callable[[str | None], int]) -> None:
        self._number_of = number_of
        #: id of a module -> number of its text, its name, the weak reference that removes the entry, and whether it
        #: is the result of `torch.compile`.
        self.known: dict[int, tuple[int, str, Any, bool]] = {}
        self._roots: dict[str, int] = {}

    def learn(self, module: Any, parent: Any) -> tuple[int, str, Any, bool]:
        """Name a new module, called from `parent`, and all modules registered below it."""
        kind = type(module).__name__
        above = self.known.get(id(parent)) if parent is not None else None
        if above is not None:
            self._learn(module, f"{above[1]}.{kind}")  # not registered below its caller
        else:
            count = self._roots[kind] = self._roots.get(kind, 0) + 1
            self._learn(module, kind if count == 1 else f"{kind}#{count}")
        return self.known[id(module)]

    def _learn(self, root: Any, name: str) -> None:
        for path, module in root.named_modules():
            key = id(module)
            if key not in self.known or module is root:
                full = f"{name}.{path}" if path else name
                forget = ref(module, lambda _, key=key: self.known.pop(key, None))  # type: ignore[misc]
                self.known[key] = (self._number_of(full), full, forget, "_orig_mod" in module._modules)
