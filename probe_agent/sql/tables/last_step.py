"""Which step a target has reached, out of its ring; nothing is asked of the target."""

from __future__ import annotations

from probe_agent.targets import Ring, RingError, Target

__all__ = ["newest_step"]


def newest_step(target: Target) -> tuple[int, float] | None:
    """The newest recorded step and when it ended, in seconds since 1970; None before the first."""
    try:
        row = Ring(target.ring_path("python.steps")).newest()
    except (RingError, OSError):
        return None  # no step yet; a damaged ring is told about by whoever queries it
    if row is None or not isinstance(row.get("step"), int) or not isinstance(row.get("ts"), int):
        return None
    return int(str(row["step"])), int(str(row["ts"])) * 1e-6
