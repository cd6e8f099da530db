"""What a target does, or did, before its first step: `start.json`, which its recorder keeps up to date.

Runs beside the target and reads one file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from probe_agent.recorder.ring.folder import START
from probe_agent.units import duration_text

from .folder_files import read_json
from .target import Target

__all__ = ["read_startup", "startup_phases", "startup_text"]

#: An import or an init_process_group that takes less is no news.
_LONG_S = 5.0
_MAX_CHARS = 500

Startup = Mapping[str, Any]  # written by the target, and not trusted


def read_startup(target: Target) -> Startup | None:
    """Return what `start.json` says; None if there is none."""
    return read_json(os.path.join(target.folder, START)) if target.has_recorder else None


def startup_phases(told: Startup) -> Sequence[tuple[str, str, str, float, float]]:
    """Return the phases in order of their beginning: phase, name, imported by, began (since 1970), seconds."""
    try:
        rows = [(str(p), str(name), str(by), float(at), float(s)) for p, name, by, at, s in told["phases"]]
    except (KeyError, TypeError, ValueError):
        return []  # not written by this version
    return sorted(rows, key=lambda row: row[3])


def startup_text(target: Target) -> str:
    """Return what a running target does instead of its first step, if it imports or waits for its process group."""
    told = read_startup(target) if target.is_alive else None
    if told is None or told.get("state") not in ("import", "init_process_group"):
        return ""
    since, text = told.get("since"), told.get("text")
    if not isinstance(since, float) or not isinstance(text, str) or time.time() - since < _LONG_S:
        return ""
    return f"no step yet: for {duration_text(time.time() - since)} {text[:_MAX_CHARS]}"
