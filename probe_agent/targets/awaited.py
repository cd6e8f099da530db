"""What a target's tables wait for, as its recorder wrote it down; nothing is asked of the target."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from probe_agent.recorder.ring.folder import AWAITED
from probe_agent.untrusted_files import opened

from .target import Target

__all__ = ["WhyEmpty", "read_awaited"]

_MAX_BYTES = 1 << 20
_MAX_CHARS = 500


@dataclass(frozen=True)
class WhyEmpty:
    """Why a table has no rows, and what to do; `age_s` is the age of the recorder, None in a dead target."""

    why: str
    remedy: str
    age_s: float | None


def read_awaited(target: Target) -> dict[str, WhyEmpty]:
    """By table; empty where the recorder is an older one, or gone with its files."""
    try:
        with opened(os.path.join(target.folder, AWAITED)) as descriptor:
            content = json.loads(os.read(descriptor, _MAX_BYTES))
        age_s = max(0.0, time.time() - float(content["since"])) if target.is_alive else None
        return {
            str(name): WhyEmpty(str(why)[:_MAX_CHARS], str(remedy)[:_MAX_CHARS], age_s)
            for name, (why, remedy) in content["tables"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # not written by this version, or not ours to read
