"""Notes on recorded tables: why they have no rows or no new ones, and whose steps are counted from the attach.

Runs in query workers and in the host server. A table without rows costs one small file a target, steps cost the newest
row of each target's `python.steps`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

from probe_agent.targets import Ring, RingError, Target, newest_step, read_awaited
from probe_agent.units import duration_text

from .declarations import recorded_tables

__all__ = ["is_uncounted", "uncounted", "why_empty", "why_old"]

#: A running job whose newest step is older than this gets a note.
OLD_S = 60.0
_MAX_NAMED = 8
_NAMES_STEP = re.compile(r"\bstep\b|\*", re.IGNORECASE)


def why_empty(
    empty: Iterable[tuple[Target, str]], *, num_targets: int, on_request: bool = True
) -> tuple[list[str], set[str]]:
    """Return one note for each reason why these tables of these targets have no rows, and the tables with a reason.

    Without `on_request`, tables that are filled only on request get no note.
    """
    found: dict[tuple[str, str], tuple[list[Target], list[str], float | None]] = {}
    explained = set()
    read = {}
    for target, table in empty:
        if target.folder not in read:
            read[target.folder] = read_awaited(target.folder, is_alive=target.is_alive)
        reason = read[target.folder].get(table)
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
        since = f" (the recorder started {duration_text(age_s)} ago)" if age_s is not None else ""
        notes.append(f"{_listed(tables)}{of}: no rows: {why}{since}; try: {remedy}")
    return notes, explained


def why_old(targets: Sequence[Target]) -> list[str]:
    """Return notes on running targets whose newest step ended long ago."""
    notes = []
    for target in targets:
        newest = newest_step(target) if target.is_alive else None
        if newest is not None and time.time() - newest[1] > OLD_S:
            age = duration_text(time.time() - newest[1])
            notes.append(f"{target}: its newest step, {newest[0]}, ended {age} ago; try: probe … backtrace")
    return notes


def uncounted(targets: Sequence[Target], sql: str) -> list[str]:
    """Return a note if `sql` reads steps of targets that count them from the attach, not as the job does."""
    found = [str(target) for target in targets if is_uncounted(target)] if _NAMES_STEP.search(sql) else []
    if not found:
        return []
    of = "" if len(targets) == 1 else f" of {_listed(found)}"
    return [
        f"step{of} is counted from the attach: the job's own count is not known; try: probe … config"
        " step.from=VARIABLE, where the job has it, such as trainer.global_step"
    ]


def is_uncounted(target: Target) -> bool:
    """Return whether a target's newest step belongs to training and has no number of the job's own."""
    try:
        row = Ring(target.ring_path("python.steps")).newest()
    except (RingError, OSError):
        return False  # no step yet; a query of a damaged ring says that it is damaged
    return row is not None and row.get("counted") is False and bool(row.get("micro_batches"))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")
