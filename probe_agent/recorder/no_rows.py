"""Reasons why tables have no rows, or no more of them: `awaited.json` beside the rings.

Each source says what it waits for (`Source.awaited`). The file is written by our own thread, when a reason has changed
and once a second at most: some 20 µs of CPU time. It can be read when the target cannot answer or has ended. It costs
the training thread nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from time import monotonic, time

from .ring.folder import AWAITED
from .source import Awaited, Source, loaded

__all__ = ["AwaitedFile", "reasons"]

INTERVAL_S = 1.0


class AwaitedFile:
    """Keeps the file in `folder` as new as it has to be."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, AWAITED)
        self._since = time()
        self._written: Mapping[str, Awaited] | None = None
        self._due = 0.0

    def write(self, found: Mapping[str, Awaited]) -> None:
        """Write `found`, by table, if it has changed. Raises OSError."""
        if found == self._written or monotonic() < self._due:
            return
        self._due = monotonic() + INTERVAL_S
        content = {"since": self._since, "tables": {name: list(one) for name, one in found.items()}}
        with open(self._path + ".new", "w") as file:
            file.write(json.dumps(content))
        os.chmod(self._path + ".new", 0o600)
        os.rename(self._path + ".new", self._path)
        self._written = dict(found)


def reasons(
    running: Iterable[Source], to_start: Iterable[type[Source]], taken_off: Iterable[type[Source]]
) -> dict[str, Awaited]:
    """What each table waits for, by its name; a table that is being recorded is not in it."""
    found: dict[str, Awaited] = {}
    for kind in to_start:
        missing = next((name for name in kind.needs if loaded(name) is None), None)
        if missing is not None:
            found.update((table.name, _not_imported(missing)) for table in kind.tables)
    for source in running:
        found.update(source.awaited())
    for kind in taken_off:
        found.update((table.name, _TAKEN_OFF) for table in kind.tables)
    return found


_TAKEN_OFF = Awaited("its source has failed three times and was taken off", "SELECT * FROM probe.errors says why")


def _not_imported(name: str) -> Awaited:
    if name.partition(".")[0] == "torch" and loaded("torch") is None:
        return Awaited("torch is not imported in this process", "probe list shows the processes that can be asked")
    return Awaited(f"{name} is not imported in this process", "rows come once the job imports and uses it")
