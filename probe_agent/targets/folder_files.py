"""Small files that a recorder leaves in its folder.

Runs beside the target; nothing is asked of it.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any

from probe_agent.recorder.ring.folder import AWAITED
from probe_agent.untrusted_files import opened

__all__ = ["WhyEmpty", "read_awaited", "read_json", "read_text"]

_MAX_BYTES = 16 << 20
_MAX_CHARS = 500
_MAX_TEXT_BYTES = 1 << 18


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


def read_text(path: str) -> tuple[str, float]:
    """Return the end of a text file, and when it was last written; empty if there is none."""
    try:
        with opened(path) as descriptor:
            status = os.fstat(descriptor)
            start = max(0, status.st_size - _MAX_TEXT_BYTES)
            return os.pread(descriptor, _MAX_TEXT_BYTES, start).decode("utf-8", "replace"), status.st_mtime
    except OSError:
        return "", 0.0


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
