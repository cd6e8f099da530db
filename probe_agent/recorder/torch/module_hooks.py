"""Our hook in one of torch's global tables of hooks on modules.

torch iterates over such a table while it calls the hooks in it, and a table that changes meanwhile raises into the
job. So it is not changed while there may be something to iterate over: what it gives instead is a snapshot with our
hook behind torch's own. It stays torch's object of torch's class, which Dynamo's guards look at and handles of the
job's hooks refer to. While Dynamo compiles, our hook must not be there.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any, Callable

__all__ = ["KEY", "OurHook"]

#: Our hook's key; torch gives out its own from 0.
KEY = -1


class OurHook:
    """It can be put into `table`, and be taken out again, at any time."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def put(self, hook: Callable[..., None]) -> None:
        """Have torch call it, which looks into tables that are not empty only."""
        table, ours = self._table, ((KEY, hook),)
        # This hides the method of the same name, of this one object.
        if table:
            table.items = lambda: (*OrderedDict.items(table), *ours)
        else:
            table.items = partial(tuple, OrderedDict.items(table))
            table[KEY] = hook

    def take(self) -> None:
        """Leave the table as it was."""
        self._table.pop(KEY, None)
        self._table.__dict__.pop("items", None)
