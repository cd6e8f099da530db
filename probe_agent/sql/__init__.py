"""SQL over what targets recorded and over what they are doing now. Runs in the host server, never in the target.

Each name is loaded when it is asked for: the command line, which only puts the answers of hosts together, needs neither
NumPy nor anything of the targets for that, half of 0.3 s.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .catalog import list_tables
    from .engine.answer import Answer
    from .merging import MalformedAnswer, MergedDatabase, NotThere, start_merging
    from .query_engine import QueryEngine
    from .tables.gpu_samples import sample_host
    from .tables.last_step import newest_step
    from .workers import Asker, Reply

__all__ = [
    "Answer",
    "Asker",
    "MalformedAnswer",
    "MergedDatabase",
    "NotThere",
    "QueryEngine",
    "Reply",
    "list_tables",
    "newest_step",
    "sample_host",
    "start_merging",
]

_HOMES = {
    "Answer": "engine.answer",
    "Asker": "workers",
    "MalformedAnswer": "merging",
    "MergedDatabase": "merging",
    "NotThere": "merging",
    "QueryEngine": "query_engine",
    "Reply": "workers",
    "list_tables": "catalog",
    "newest_step": "tables.last_step",
    "start_merging": "merging",
    "sample_host": "tables.gpu_samples",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
