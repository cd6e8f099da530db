"""The HTTP API over all targets of a host. Runs in the host server, or in the CLI for one question.

Each name is loaded when it is asked for, so that query workers can be started before FastAPI is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe_agent.sql import QueryEngine

    from .access import Access
    from .allowance import Allowance
    from .app import create_app

__all__ = ["Access", "Allowance", "QueryEngine", "create_app"]

_HOMES = {
    "Access": "probe_agent.server.access",
    "Allowance": "probe_agent.server.allowance",
    "QueryEngine": "probe_agent.sql",
    "create_app": "probe_agent.server.app",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
