"""Small files that a recorder leaves in its folder: why its tables are empty, how its process ended.

Runs beside the target; nothing is asked of it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from probe_agent.recorder.ring.folder import AWAITED, END
from probe_agent.untrusted_files import opened

__all__ = ["End", "WhyEmpty", "end_of", "read_awaited", "read_json"]

_MAX_BYTES = 16 << 20
_MAX_CHARS = 500


def read_json(path: str, *, owner: int | None = None) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is none, it is not whole, or it does not belong to `owner`."""
    try:
        with opened(path) as descriptor:
            if owner is not None and os.fstat(descriptor).st_uid != owner:
                return None
            data = b""
            while len(data) < _MAX_BYTES and (part := os.read(descriptor, 1 << 20)):
                data += part
        content = json.loads(data)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


@dataclass(frozen=True)
class WhyEmpty:
    """Why a table has no rows, and what to try; `age_s` is the age of the recorder, None if the target has ended."""

    why: str
    remedy: str
    age_s: float | None


def read_awaited(folder: str, *, is_alive: bool) -> dict[str, WhyEmpty]:
    """Return what each empty table waits for; nothing if the recorder is an older one or its files are gone."""
    content = read_json(os.path.join(folder, AWAITED)) or {}
    try:
        age_s = max(0.0, time.time() - float(content["since"])) if is_alive else None
        return {
            str(name): WhyEmpty(str(why)[:_MAX_CHARS], str(remedy)[:_MAX_CHARS], age_s)
            for name, (why, remedy) in content["tables"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # not written by this version


@dataclass(frozen=True)
class End:
    """The end of a target, or its beginning: the interpreter may still be shutting down."""

    #: Seconds since 1970 on its host's clock; None if nobody saw it.
    at: float | None
    #: When its recorder last ticked.
    last_seen: float
    how: str
    #: Whether it was killed or raised, or nobody knows.
    badly: bool = True


def end_of(folder: str) -> End | None:
    """Return how the target with this folder ended, at an unknown time if nothing is written down; None if the folder
    is gone."""
    try:
        last_seen = os.stat(folder).st_mtime
    except OSError:
        return None
    said = read_json(os.path.join(folder, END)) or {}
    at = said.get("at")
    if not isinstance(at, float):
        return End(None, last_seen, "ended, cause unknown")
    return End(at, last_seen, _how(said), badly=said.get("how") != "exit" and said.get("code") != 0)


def _how(said: dict[str, Any]) -> str:
    kind, code = said.get("how"), said.get("code")
    if kind == "raised":
        return f"raised {said.get('error')}"
    if kind == "exit":
        return "exited normally"
    if not isinstance(code, int):
        return "disappeared, cause unknown"
    if code < 0:
        return f"was killed by {_signal(-code)}"
    return f"exited with code {code}, without its exit handlers"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
