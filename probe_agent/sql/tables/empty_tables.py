"""Notes on recorded tables without rows: why, since when, and what to do.

Runs in query workers and in the host server, for tables of which some target has no rows: one small file a target.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from probe_agent.targets import Target, read_awaited

from .declarations import recorded_tables
from .last_step import newest_step

__all__ = ["why_empty", "why_old"]

#: A living job whose newest step is as old as that gets a note on it.
OLD_S = 60.0
_MAX_NAMED = 8


def why_empty(
    empty: Iterable[tuple[Target, str]], *, num_targets: int, on_request: bool = True
) -> tuple[list[str], set[str]]:
    """One note for each reason why these tables of these targets have no rows; and the tables with a reason. Unless
    `on_request` nothing is said of those that are only filled when somebody wants that."""
    found: dict[tuple[str, str], tuple[list[Target], list[str], float | None]] = {}
    explained = set()
    told = {}
    for target, table in empty:
        if target.folder not in told:
            told[target.folder] = read_awaited(target)
        reason = told[target.folder].get(table)
        declared = recorded_tables().get(table)
        if reason is not None:
            key, age_s = (reason.why, reason.remedy), reason.age_s
        elif on_request and declared is not None and declared.filled_by:
            key, age_s = ("nothing has filled it yet", declared.filled_by), None
        else:
            continue
        explained.add(table)
        targets, tables, _ = found.setdefault(key, ([], [], age_s))
        targets.extend([target] if target not in targets else [])
        tables.extend([table] if table not in tables else [])
    notes = []
    for (why, remedy), (targets, tables, age_s) in found.items():
        of = "" if num_targets == 1 else f" of {_listed(list(map(str, targets)))}"
        since = f" (the recorder started {_duration(age_s)} ago)" if age_s is not None else ""
        notes.append(f"{_listed(tables)}{of}: no rows: {why}{since}; try: {remedy}")
    return notes, explained


def why_old(targets: Sequence[Target]) -> list[str]:
    """Notes on living targets whose steps have not gone on for a long time."""
    notes = []
    for target in targets:
        newest = newest_step(target) if target.is_alive else None
        if newest is not None and time.time() - newest[1] > OLD_S:
            age = _duration(time.time() - newest[1])
            notes.append(f"{target}: its newest step, {newest[0]}, ended {age} ago; where it is: probe … backtrace")
    return notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
