"""Sources of a query: the rings of the targets, and the live tables that it names.

Runs in a query worker. A target that cannot be read is left out with a note; if none can be read, that is an error,
because "no rows" and "no answer" must not look alike.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

import numpy as np

from probe_agent.errors import NoAnswer
from probe_agent.recorder.ring.table import COORDINATES, Column
from probe_agent.sql.tables.declarations import known_tables, live_tables, recorded_tables
from probe_agent.sql.tables.live_rows import LiveRows, TakeLive
from probe_agent.sql.tables.live_table import Columns, HostTable, LiveTable, Part, Row
from probe_agent.sql.tables.notes import uncounted, why_empty, why_old
from probe_agent.targets import RingError, Target
from probe_agent.wire import shape

from .open_rings import OpenRings
from .snapshot import Snapshot
from .source import TableSource

__all__ = ["Gathered"]

#: Statements that ask which tables there are, without naming one.
_LISTS_TABLES = re.compile(r"\b(show|information_schema|duckdb_\w+|pg_\w+|sqlite_\w+)\b", re.IGNORECASE)
#: It matches in one way only: see `_past_comments` in statement.py.
_GAP = r"(?:\s|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*"
STEPS = "python.steps"
_LIVE_DTYPES = {"time": "datetime64[us]"}


class Gathered:
    """The sources of one query, and notes on them."""

    def __init__(self, rings: OpenRings, targets: Sequence[Target], sql: str, take: TakeLive) -> None:
        self.notes: list[str] = []
        #: By PID, why a target has no rows in a live table.
        self.unanswered: dict[str, str] = {}
        self._rings = rings
        self._targets = targets
        self._sql = sql
        self._known = known_tables(targets)
        named = {name: table for name, table in self._known.items() if _names(sql, name)}
        if not named and _LISTS_TABLES.search(sql):
            named = {name: table for name, table in self._known.items() if name not in live_tables()}
        self._wanted = named
        self._live = self._take([name for name in self._wanted if name in live_tables()], take)
        self._snapshots: list[Snapshot] = []
        #: The recorded tables that the query names of which no target has a row, for a reason that `notes` tells.
        self.missing: tuple[str, ...] = ()
        #: Columns of tables that none of our declarations has, by their first ring.
        self._found: dict[str, Sequence[Column]] = {}

    @property
    def columns_of_all(self) -> dict[str, list[str]]:
        """Every known table with its columns."""
        return {name: [c.name for c in (*COORDINATES, *columns)] for name, columns in self._known.items()}

    @property
    def shapes(self) -> dict[str, str]:
        """The shape of each table that the query names (`wire.shape`)."""
        told = {name: columns or self._found.get(name, ()) for name, columns in self._wanted.items()}
        return {name: shape((c.name, c.sql_type) for c in (*COORDINATES, *columns)) for name, columns in told.items()}

    def sources(self, *, copied: bool) -> Iterator[TableSource]:
        """Iterate over the tables; rings are read now, live tables have been taken already."""
        self._snapshots.clear()
        empty: list[tuple[Target, str]] = []
        for name, columns in self._wanted.items():
            parts = self._live[name] if name in self._live else self._read_rings(name, copied, empty)
            yield TableSource(name, columns, parts)
        self._explain(empty)

    def overtaken(self) -> bool:
        """Return whether a writer has begun to overwrite what the last `sources` returned."""
        return any(snapshot.overtaken() for snapshot in self._snapshots)

    def _explain(self, empty: Sequence[tuple[Target, str]]) -> None:
        """Add notes on tables without rows, or without new ones."""
        notes, explained = why_empty(empty, num_targets=len(self._targets))
        of_none = {name for name in explained if sum(table == name for _, table in empty) == len(self._targets)}
        self.missing = tuple(sorted(of_none))
        recorded = [table for name, table in recorded_tables().items() if name in self._wanted]
        if any(column.name == "step" for table in recorded for column in table.columns):
            notes += uncounted([target for target in self._targets if target.has_recorder], self._sql)
        if STEPS in self._wanted:
            notes += why_old([target for target in self._targets if target.has_recorder])
        self.notes += [note for note in notes if note not in self.notes]

    def _read_rings(self, name: str, copied: bool, empty: list[tuple[Target, str]]) -> list[Part]:
        parts: list[Part] = []
        failures: list[str] = []
        for target in self._targets:
            if not target.has_recorder:
                failures.append(f"{target} has no recorder in it: it has recorded nothing")
                continue
            try:
                ring = self._rings.get(target.ring_path(name))
                snapshot = Snapshot.copied(ring) if copied else Snapshot.in_place(ring)
            except FileNotFoundError:
                if not os.path.isdir(target.folder):
                    failures.append(f"{target} has been detached since")
                else:
                    empty.append((target, name))
                continue
            except (RingError, OSError) as error:
                failures.append(f"{target}: {name} cannot be read: {error}")
                continue
            if not snapshot.head:
                empty.append((target, name))
            self._snapshots.append(snapshot)
            self._found.setdefault(name, ring.columns)
            parts.append(_part(snapshot, target))
        self._note(failures, answered=len(parts))
        return parts

    def _take(self, names: Sequence[str], take: TakeLive) -> dict[str, Sequence[Part]]:
        own = {name: table for name in names if (table := live_tables()[name]).in_worker}
        asked = [name for name in names if name not in own]
        taken = dict(take(asked)) if asked else {}
        for name, table in own.items():
            assert issubclass(table, HostTable)
            parts, notes = table.take_host(self._targets)
            taken[name] = LiveRows(parts=parts, notes=notes)
        return {name: self._shown(live_tables()[name], taken[name]) for name in names}

    def _shown(self, table: type[LiveTable], taken: LiveRows) -> Sequence[Part]:
        parts = [
            Part(_coordinates(self._targets[at]), table.columns, [_columns(table, rows)]) for at, rows in taken.rows
        ]
        if taken.failures and not parts:
            raise next(iter(taken.failures.values()))
        self.unanswered.update({str(self._targets[at].pid): error.message for at, error in taken.failures.items()})
        self.notes += [note for note in taken.notes if note not in self.notes]
        self._note([error.message for error in taken.failures.values()], answered=len(parts))
        return [*parts, *taken.parts]

    def _note(self, failures: Sequence[str], *, answered: int) -> None:
        if failures and not answered:
            pid = self._targets[0].pid
            raise NoAnswer("; ".join(failures), f"attach with a recorder of this version: probe {pid} inject")
        self.notes += [failure for failure in failures if failure not in self.notes]


def _names(sql: str, table: str) -> bool:
    """Return whether a statement names `table` as schema.table, in any spelling of SQL."""
    schema, _, name = table.rpartition(".")
    if name.lower() not in sql.lower():
        return False  # true for all but one or two of 25 tables: a pattern for each would cost 1 ms
    schema, name = re.escape(schema), re.escape(name)
    between = r'"?' + _GAP + r"\." + _GAP + r'"?'
    return re.search(rf"(?<!\w){schema}{between}{name}(?!\w)", sql, re.IGNORECASE | re.DOTALL) is not None


def _part(snapshot: Snapshot, target: Target) -> Part:
    """Return the rows of a ring. Rank, world size and job are those that the target has by now: a rank that joins its
    job after its first rows has them on these too."""
    ring = snapshot.ring
    return Part({**ring.coordinates, **target.place_in_job}, ring.columns, snapshot.segments(), snapshot.strings)


def _coordinates(target: Target) -> dict[str, object]:
    identity = target.identity
    return {"host": identity.get("host"), "pid": target.pid, **target.place_in_job}


def _columns(table: type[LiveTable], rows: Sequence[Row]) -> Columns:
    columns: Columns = {}
    for at, column in enumerate(table.columns):
        values = np.empty(len(rows), object)
        values[:] = [row[at] for row in rows]
        columns[column.name] = values.astype(_LIVE_DTYPES.get(column.kind, object))
    return columns
