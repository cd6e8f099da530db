"""The command line: asks targets and host servers, merges their answers, shows them.

Runs in the operator's own process, never in a target. `probe_cli.connect` is the door for notebooks and scripts: what
stands behind it is loaded when it is asked for, so that importing this package costs nothing.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .notebook import connect, load_ipython_extension

__all__ = ["connect", "load_ipython_extension"]

# httpx imports rich and pygments for a command line of its own when it finds them: 35 ms for nothing.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.notebook"), name)
