"""The newest stall of a target: what its recorder has noticed, and the snapshot that it has left.

Runs beside the target and reads its files: also one that holds its GIL, is stopped or has ended can be asked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe_agent.recorder.ring.folder import STALL
from probe_agent.units import duration_text

from .folder_files import read_json
from .rings import Ring, RingError
from .target import Target

__all__ = ["StallSnapshot", "read_stall_snapshot", "stall_text"]

_VERBS = {
    "evaluation": "evaluates",
    "generation": "generates",
    "save": "saves a checkpoint",
    "load": "loads a checkpoint",
    "compile": "compiles",
    "import": "imports modules",
    "init_process_group": "waits in init_process_group",
    "collective": "is in a collective",
    "data": "waits for its data loader",
    "events": "waits for events",
    "ended": "has ended the thread that trained",
    "python": "runs other code",
}


@dataclass(frozen=True)
class StallSnapshot:
    """What `stall.json` holds; nothing in it is trusted."""

    #: The stall as python.stalls has it: step, began, noticed (seconds since 1970), activity, …
    stall: Mapping[str, Any]  # Any: written by the target
    _sections: Mapping[str, Any]

    @property
    def sections(self) -> Sequence[str]:
        """Names of its sections, the most telling ones first."""
        return list(self._sections)

    def rows(self, section: str) -> Iterator[dict[str, Any]]:
        """Iterate over the rows of a section, by name of their columns."""
        found = self._sections.get(section)
        if isinstance(found, dict) and isinstance(found.get("columns"), list) and isinstance(found.get("rows"), list):
            names = list(map(str, found["columns"]))
            for row in found["rows"]:
                if isinstance(row, list) and len(row) == len(names):
                    yield dict(zip(names, row, strict=True))

    def left_out(self, section: str) -> int:
        """Return the number of rows for which there was no room."""
        found = self._sections.get(section)
        number = found.get("left_out") if isinstance(found, dict) else 0
        return number if isinstance(number, int) else 0


def read_stall_snapshot(target: Target) -> StallSnapshot | None:
    """Return the snapshot of the newest stall; None if there is none."""
    content = read_json(os.path.join(target.folder, STALL)) if target.has_recorder else None
    if content is None or not isinstance(content.get("stall"), dict) or not isinstance(content.get("sections"), dict):
        return None
    return StallSnapshot(content["stall"], content["sections"])


def stall_text(target: Target) -> str:
    """Return the stall that the target is in, or was in when it ended, as a sentence; empty if there is none."""
    if not target.has_recorder:
        return ""
    try:
        row = Ring(target.ring_path("python.stalls")).newest()
    except (RingError, OSError):
        return ""  # no stall yet; a query of a damaged ring says that it is damaged
    if row is None or row.get("state") != "stalled":
        return ""
    began = float(str(row["began"])) * 1e-6
    end = target.end
    until = time.time() if target.is_alive or end is None else end.at or end.last_seen
    no_step = f"no step for {duration_text(max(0.0, until - began))}"
    does = _VERBS.get(str(row.get("activity")), str(row.get("activity")))
    within = f", in {row['within']}" if row.get("within") else ""
    place = f", at {row['place']}" if row.get("place") else ""
    collective = f", {row['collective']}" if row.get("collective") and row.get("activity") == "collective" else ""
    if row.get("is_work"):
        return f"{no_step}: it {does}{within}{place}"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began))
    return f"{no_step}; stalled since {since} UTC: it {does}{within}{collective}{place}"
