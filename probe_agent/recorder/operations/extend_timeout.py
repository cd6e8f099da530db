"""Longer timeouts of the job's process groups, for `probe … hang --extend-timeout`.

Runs on a thread of the recorder: one call of torch per group, without communication. torch gives a timeout to a call
when the call is made, so calls that already wait keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ..source import Recorder
from ..torch import loaded

__all__ = ["answer"]


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Set the timeout of each group to `seconds`, unless it is longer. Return group, timeout before and now, and notes
    on groups that have none."""
    seconds = float(request["seconds"])
    c10d: Any = loaded("torch.distributed.distributed_c10d")
    world: Any = getattr(c10d, "_world", None)
    groups, notes = [], []
    for group in list(getattr(world, "pg_map", ())):
        name = str(world.pg_names.get(group, ""))
        backends = [each for each in _backends(group) if hasattr(each, "_set_default_timeout")]
        if not backends:
            notes.append(f"the backend of group {name} has no timeout that can be changed")
        for backend in backends:
            before = _timeout_s(backend)
            if before is None or before < seconds:
                backend._set_default_timeout(timedelta(seconds=seconds))
            groups.append([name, before, _timeout_s(backend)])
    return {"groups": groups, "notes": notes if groups or notes else ["it is in no process group"]}


def _backends(group: Any) -> list[Any]:
    """Return the backends of a group, each once: one may serve several devices."""
    found: dict[int, Any] = {}
    for device in getattr(group, "_device_types", ()):
        try:
            backend = group._get_backend(device)
        except RuntimeError:
            continue  # it has none for this device
        found[id(backend)] = backend
    return list(found.values())


def _timeout_s(backend: Any) -> float | None:
    timeout = getattr(getattr(backend, "options", None), "_timeout", None)
    return timeout.total_seconds() if isinstance(timeout, timedelta) else None
