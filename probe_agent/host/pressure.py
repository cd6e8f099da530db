"""Pressure on CPU, memory and I/O (PSI), and the limits of control groups, of the host and of the targets' groups.

Pressure is kept by Linux 4.20 and later, of control groups by version 2. Takes about 0.1 ms for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from probe_agent.cgroups import CGROUPS, Level, levels
from probe_agent.units import MIB

from .sample import NAN, Sample

__all__ = ["COUNTERS", "GAUGES", "of_group", "of_host", "stalled_s"]

#: Seconds in which some or all tasks waited; CPU time; periods and time in which the group was throttled.
COUNTERS = (
    "cpu_some",
    "memory_some",
    "memory_full",
    "io_some",
    "io_full",
    "cpu_used",
    "periods",
    "throttled_periods",
    "throttled_time",
    "limit_hits",
    "oom_kills",
)
GAUGES = ("cpu_limit", "memory_used", "memory_limit", "pids_used", "pids_limit")
_NO_LIMIT = 1 << 60
_STALLS = (("cpu", "some"), ("memory", "some"), ("memory", "full"), ("io", "some"), ("io", "full"))
_FOLDER = Path("/proc/pressure")


def of_host(folder: Path = _FOLDER) -> Sample:
    """Return the pressure on the whole host."""
    stalls = tuple(_stalled(folder / what, which) for what, which in _STALLS)
    return Sample((*stalls, *[NAN] * 6), (NAN,) * len(GAUGES))


def of_group(text: str, root: Path = CGROUPS) -> tuple[str, Sample] | None:
    """Return the path of a process's group, by its /proc/PID/cgroup, and its sample. Limits are the lowest of the group
    and those above it. None if no control group can be read."""
    cpu, memory, pids = (list(levels(text, controller, root)) for controller in ("cpu", "memory", "pids"))
    # The root of version 2 has no type, and its pressure is the host's.
    second = [level for level in cpu if level.version == 2 and (level.folder / "cgroup.type").exists()]
    stalls = tuple(_stalled(second[0].folder / f"{what}.pressure", which) if second else NAN for what, which in _STALLS)
    limit_cpu, throttling = _tightest(cpu, _cpu_limit)
    limit_memory, _ = _tightest(memory, _memory_limit)
    limit_pids, of_pids = _tightest(pids, lambda level: _number(level.folder / "pids.max"))
    own = _fields(memory[0].folder / "memory.events") if memory else {}
    groups = [level for level in (*memory, *cpu, *pids) if level.folder.is_dir()]
    if not groups:
        return None
    path = next((level.path for level in groups if level.path not in ("", "/")), "/")
    # In version 1 a process may be in another group for its CPU time.
    same = [level for level in levels(text, "cpuacct", root) if level.path == path]
    counters = (
        *stalls,
        _cpu_used(same),
        *_throttled(throttling),
        _limit_hits(memory[0], own) if memory else NAN,
        _oom_kills(memory[0], own) if memory else NAN,
    )
    used = _memory_used(memory[0]) if memory else NAN
    num_pids = _number((of_pids or pids[0]).folder / "pids.current") if pids else NAN
    return path, Sample(counters, (limit_cpu, used, limit_memory, num_pids, limit_pids))


def stalled_s(text: str, which: str) -> float:
    """Return the seconds since boot of a line (`some`, `full`) of a pressure file; NaN if it has no such line."""
    for line in text.splitlines():
        kind, *fields = line.split()
        if kind == which:
            return next((int(field[6:]) / 1e6 for field in fields if field.startswith("total=")), NAN)
    return NAN


def _stalled(file: Path, which: str) -> float:
    try:
        return stalled_s(file.read_text(), which)
    except OSError:  # EOPNOTSUPP where it is switched off (psi=0)
        return NAN


def _tightest(found: list[Level], read: Callable[[Level], float]) -> tuple[float, Level | None]:
    """Return the lowest limit of the groups, and the group that has it."""
    limits = [(limit, level) for level in found if (limit := read(level)) == limit]
    return min(limits, key=lambda one: one[0], default=(NAN, None))


def _cpu_limit(level: Level) -> float:
    """Return the cores that a group may use; NaN without a limit."""
    if level.version == 1:
        quota, period = (_number(level.folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        return quota / period if quota > 0 else NAN
    with suppress(OSError, ValueError):
        quota_text, period_text = (level.folder / "cpu.max").read_text().split()
        return NAN if quota_text == "max" else int(quota_text) / int(period_text)
    return NAN


def _cpu_used(found: list[Level]) -> float:
    """Return the CPU time of the group, in seconds."""
    for level in found:
        if level.version == 2:
            used = _fields(level.folder / "cpu.stat").get("usage_usec", NAN) / 1e6
        else:
            used = _number(level.folder / "cpuacct.usage") / 1e9
        if used == used:
            return used
    return NAN


def _throttled(level: Level | None) -> tuple[float, float, float]:
    """Return the periods of a group, those in which it was throttled, and for how many seconds."""
    if level is None:
        return NAN, NAN, NAN
    stat = _fields(level.folder / "cpu.stat")
    time = stat.get("throttled_usec", NAN) / 1e6 if level.version == 2 else stat.get("throttled_time", NAN) / 1e9
    return stat.get("nr_periods", NAN), stat.get("nr_throttled", NAN), time


def _memory_limit(level: Level) -> float:
    limit = _number(level.folder / ("memory.limit_in_bytes" if level.version == 1 else "memory.max"))
    return limit / MIB if limit < _NO_LIMIT else NAN


def _memory_used(level: Level) -> float:
    return _number(level.folder / ("memory.usage_in_bytes" if level.version == 1 else "memory.current")) / MIB


def _limit_hits(level: Level, events: dict[str, float]) -> float:
    return _number(level.folder / "memory.failcnt") if level.version == 1 else events.get("max", NAN)


def _oom_kills(level: Level, events: dict[str, float]) -> float:
    counted = events or _fields(level.folder / "memory.oom_control")
    return counted.get("oom_kill", NAN)


def _fields(file: Path) -> dict[str, float]:
    """Return the lines `name number` of a file; empty if it cannot be read."""
    with suppress(OSError):
        return dict(_pairs(file.read_text()))
    return {}


def _pairs(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            yield words[0], float(words[1])


def _number(file: Path) -> float:
    try:
        return float(file.read_text())
    except (OSError, ValueError):  # `max`, where there is no limit
        return NAN
