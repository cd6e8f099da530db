"""Limits that a series of memory comes nearer to as it grows, each with the MiB that are left.

Plain functions over a row of `process.memory` and the newest numbers of a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probe_cli.text import mebibytes

from .look import OWN, SHM

__all__ = ["Limit", "headroom", "limit_of_device", "limits_of_host"]


@dataclass(frozen=True)
class Limit:
    """A limit in words, and the MiB to it; a shared one comes nearer as other processes of the host grow, too."""

    name: str
    left: float
    is_shared: bool = False


def limits_of_host(series: str, now: Mapping[str, object] | None) -> list[Limit]:
    """Return the limits of a series of the host's memory; none if the target has ended."""
    found: list[Limit] = []

    def number(name: str) -> float | None:
        value = (now or {}).get(name)
        return float(value) if isinstance(value, int | float) else None

    size, used = number("shm_size"), number("shm_used")
    if series == SHM:
        return [] if size is None or used is None else [Limit(f"the {mebibytes(size)} of {SHM}", size - used)]
    total, available = number("host_total"), number("host_available")
    if total is not None and available is not None:
        found.append(Limit(f"the {mebibytes(total)} of the host", available, True))
    limit, used = number("cgroup_limit"), number("cgroup_used")
    if limit is not None and used is not None:
        left = limit - used + (number("cgroup_page_cache") or 0.0)
        found.append(Limit(f"the limit of its control group, {mebibytes(limit)}", left, True))
    limit, used = number("address_limit"), number("address_space")
    if limit is not None and used is not None and series == OWN:
        found.append(Limit(f"the limit of its address space (ulimit -v), {mebibytes(limit)}", limit - used))
    return found


def limit_of_device(
    name: str, total: float | None, used: float | None, reserved: float | None, allocated: float | None
) -> list[Limit]:
    """Return the size of a device as the limit of what is allocated on it; none if NVML does not tell it."""
    if total is None or used is None:
        return []
    return [Limit(f"the {mebibytes(total)} of {name}", total - used + (reserved or 0.0) - (allocated or 0.0))]


def headroom(limits: list[Limit]) -> float | None:
    """Return the MiB to the nearest limit; None if none is known."""
    return min((limit.left for limit in limits), default=None)
