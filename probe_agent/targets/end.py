"""How a target came to its end: what it or another rank has written down, or when it was last seen alive.

Runs beside the target; one small file and one stat.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import Any

from probe_agent.recorder.ring.folder import END
from probe_agent.untrusted_files import opened

__all__ = ["End", "end_of"]

_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class End:
    """The end of a target, or its beginning: the interpreter may still be shutting down."""

    #: Seconds since 1970, on its host's clock; None where nobody saw it.
    at: float | None
    #: When its recorder last ticked.
    last_seen: float
    how: str
    #: Whether it was killed or raised, or nobody knows.
    badly: bool = True


def end_of(folder: str) -> End | None:
    """The end of the target with this folder; with an unknown time where nothing is written down. None without a
    folder."""
    try:
        last_seen = os.stat(folder).st_mtime
    except OSError:
        return None
    said = _read(os.path.join(folder, END))
    at = said.get("at")
    if not isinstance(at, float):
        return End(None, last_seen, "ended, and nobody saw how")
    return End(at, last_seen, _how(said), badly=said.get("how") != "exit" and said.get("code") != 0)


def _how(said: dict[str, Any]) -> str:
    kind, code = said.get("how"), said.get("code")
    if kind == "raised":
        return f"raised {said.get('error')}"
    if kind == "exit":
        return "came to its own end"
    if not isinstance(code, int):
        return "died without a word"
    if code < 0:
        return f"was killed by {_signal(-code)}"
    return f"left with exit code {code} without a word"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read(path: str) -> dict[str, Any]:
    try:
        with opened(path) as descriptor:
            said = json.loads(os.read(descriptor, _MAX_BYTES))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
