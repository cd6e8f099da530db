"""One file for each way to compare: it says which facts it needs (`NEEDS`), and compares them (`compare`)."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:  # `probe --help` needs only the names
    from probe_cli.cluster.compare.comparison import Comparison
    from probe_cli.cluster.compare.facts import Facts

__all__ = ["Way", "load", "names"]


class Way(Protocol):
    """What each file here has."""

    NEEDS: tuple[str, ...]

    def compare(self, facts: Sequence[Facts], num_steps: int) -> Comparison:
        """The ranks side by side, over so many steps at most."""
        raise NotImplementedError


@cache
def names() -> list[str]:
    """All ways, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Way:
    """The way called `name`."""
    return cast(Way, importlib.import_module(f"{__name__}.{name}"))
