"""A note for answers with the number of a step: whose steps are counted from the attach, not by the job.

Runs in the host server, on the query's thread: the newest row of each target's `python.steps`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from probe_agent.targets import Ring, RingError, Target

__all__ = ["uncounted"]

_NAMES_STEP = re.compile(r"\bstep\b|\*", re.IGNORECASE)
_MAX_NAMED = 8


def uncounted(targets: Sequence[Target], sql: str) -> list[str]:
    """At most one note."""
    found = [str(target) for target in targets if _is_uncounted(target)] if _NAMES_STEP.search(sql) else []
    if not found:
        return []
    of = "" if len(targets) == 1 else f" of {', '.join(found[:_MAX_NAMED])}"
    of += f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return [
        f"step{of} is counted from the attach: the job's own count is not known; try: probe … config"
        " step.from=VARIABLE, where the job has it, such as trainer.global_step"
    ]


def _is_uncounted(target: Target) -> bool:
    """Whether its newest step is one of a training, and has no number of the job's."""
    try:
        row = Ring(target.ring_path("python.steps")).newest()
    except (RingError, OSError):
        return False  # no step yet; a damaged ring is told about by whoever queries it
    return row is not None and row.get("counted") is False and bool(row.get("micro_batches"))
