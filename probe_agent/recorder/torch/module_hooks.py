"""The recorder's hook in one of torch's global tables of module hooks.

torch iterates over such a table while it calls the hooks in it, and a table that changes meanwhile raises into the job.
So a table with hooks is not changed: its `items` returns a snapshot with the recorder's hook last. It stays torch's
object of torch's class, which Dynamo's guards check and handles of the job's hooks refer to. While Dynamo compiles, the
hook must not be there. Put and taken on the training thread between two steps: a few stores.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any, Callable

__all__ = ["KEY", "OurHook"]

#: Key of the recorder's hook; torch counts its own from 0.
KEY = -1


class OurHook:
    """A hook that can be put into `table` and taken out at any time."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def put(self, hook: Callable[..., None]) -> None:
        """Make torch call `hook`; torch reads only tables that are not empty."""
        table, ours = self._table, ((KEY, hook),)
        # An attribute of this object, which hides the method of its class.
        if table:
            table.items = lambda: (*OrderedDict.items(table), *ours)
        else:
            table.items = partial(tuple, OrderedDict.items(table))
            table[KEY] = hook

    def take(self) -> None:
        """Restore the table."""
        self._table.pop(KEY, None)
        self._table.__dict__.pop("items", None)
