"""Live table of what happened before the first step: `python.startup`.

Read from the target's folder, so that it answers while the target cannot, and after it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe_agent.errors import NoAnswer
from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target, read_startup, startup_phases

from .live_table import LiveTable, Row

__all__ = ["Startup"]

_INIT = "init_process_group"


class Startup(LiveTable):
    name = "python.startup"
    doc = (
        "Where the time before the first step went, one row per package imported, call of init_process_group, and the"
        " rest; as the recorder's thread saw it, every flush.interval. From the first line on after a planned start."
    )
    columns = (
        Column("phase", "text", "", "import, init_process_group or other"),
        Column("name", "text", "", "package being imported; where the ranks meet: host:port or a file"),
        Column("imported_by", "text", "", "package that the job's own code imports, if it is another one"),
        Column("began", "time", "UTC", "when it was first seen"),
        Column("duration", "float", "s", "time in it, without what it imports; precise to flush.interval"),
        Column("is_now", "bool", "", "the main thread is in it"),
        Column("num_come", "int or null", "", "ranks that have come to init_process_group, as far as is known"),
        Column("come", "text", "", "those of them that are known, as 0, 2; NULL elsewhere"),
        Column("late", "text", "", "ranks of this host that have not come, and what they do"),
        Column("problem", "text", "", "why the job's store did not tell which ranks have come"),
    )

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        if not target.has_recorder:
            raise NoAnswer(
                f"{target} has no recorder in it: it has recorded nothing", f"attach first: probe {target.pid} inject"
            )
        told = read_startup(target)
        if told is None:
            return [], [f"{target}: no import and no init_process_group has been seen since the recorder started"]
        rows: list[Row] = []
        for phase, name, by, began, seconds in startup_phases(told):
            is_now = [phase, name, by] == told.get("now")
            ranks = _ranks(told) if phase == _INIT else (None, None, None, None)
            rows.append((phase, name or None, by or None, round(began * 1e6), seconds, is_now, *ranks))
        return rows, []


def _ranks(told: Mapping[str, Any]) -> tuple[object, object, object, object]:
    num, come, late, problem = (told.get(name) for name in ("num_come", "come", "late", "problem"))
    return (
        num if isinstance(num, int) else None,
        ", ".join(map(str, come)) if isinstance(come, list) and come else None,
        "; ".join(f"rank {rank}: {does}" for rank, does in late.items()) if isinstance(late, dict) and late else None,
        str(problem) if problem else None,
    )
