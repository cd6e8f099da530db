"""List of all tables: their rows, the time that these cover, and the meaning of their columns.

Runs in the host server; reads the first and the newest row of each ring and asks the targets nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timezone

from probe_agent.recorder.ring.table import COORDINATES, Column
from probe_agent.targets import Ring, RingError, Target
from probe_agent.wire import ColumnInfo, TableInfo, TableList

from .engine.open_rings import OpenRings
from .tables.declarations import known_tables, live_tables, recorded_tables
from .tables.notes import why_empty, why_old

__all__ = ["list_tables"]


def list_tables(
    rings: OpenRings, targets: Sequence[Target], remarks: Sequence[str] = (), only: Collection[str] = ()
) -> TableList:
    """Return every table, or those in `only`, with what it holds now. A ring that cannot be read becomes a note."""
    rings.forget_removed()
    notes = list(remarks)
    declared = {**recorded_tables(), **live_tables()}
    tables = []
    empty: list[tuple[Target, str]] = []
    for name, columns in known_tables(targets).items():
        if only and name not in only:
            continue
        found = _rings_of(name, rings, targets, notes, empty)
        doc = declared[name].doc if name in declared else found[0].doc if found else ""
        columns = columns or (found[0].columns if found else ())
        rows, lost, covers, first, last = _extent(found)
        tables.append(
            TableInfo(
                name=name,
                doc=doc,
                kind="live" if name in live_tables() else "recorded",
                columns=tuple(map(_column, (*COORDINATES, *columns))),
                rows=None if name in live_tables() else rows,
                lost=None if name in live_tables() else lost,
                covers=covers,
                first=first,
                last=last,
            )
        )
    notes += why_empty(empty, num_targets=len(targets), on_request=False)[0] + why_old(targets)
    return TableList(tuple(tables), tuple(notes))


def _rings_of(
    name: str, rings: OpenRings, targets: Sequence[Target], notes: list[str], empty: list[tuple[Target, str]]
) -> list[Ring]:
    found = []
    for target in targets:
        try:
            ring = rings.get(target.ring_path(name))
            found.append(ring)
            if not ring.head:
                empty.append((target, name))
        except FileNotFoundError:
            empty.append((target, name))
        except (RingError, OSError) as error:
            notes.append(f"{target}: {name} cannot be read: {error}")
    return found


def _extent(rings: Sequence[Ring]) -> tuple[int, int, float | None, str | None, str | None]:
    """Return rows in `rings`, rows overwritten, the shortest time that one covers, oldest and newest time."""
    num_rows = num_lost = 0
    times: list[int] = []
    spans: list[float] = []
    for ring in rings:
        head = ring.head
        oldest = max(0, ring.reserved - ring.capacity)
        num_rows += max(0, head - oldest)
        num_lost += oldest
        ends = [_time(ring.row_number(number)) for number in (oldest, head - 1)]
        times += [end for end in ends if end is not None]
        if None not in ends:
            spans.append((times[-1] - times[-2]) * 1e-6)
    first, last = _iso(min(times, default=None)), _iso(max(times, default=None))
    return num_rows, num_lost, min(spans, default=None), first, last


def _time(row: dict[str, object] | None) -> int | None:
    time = (row or {}).get("ts")
    return time if isinstance(time, int) else None


def _iso(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    time = datetime.fromtimestamp(microseconds * 1e-6, timezone.utc)
    return time.replace(tzinfo=None).isoformat(timespec="microseconds")


def _column(column: Column) -> ColumnInfo:
    return ColumnInfo(column.name, column.sql_type, column.unit, column.meaning)
