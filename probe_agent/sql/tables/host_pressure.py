"""`host.pressure`: time lost to a lack of CPU, memory or I/O, and the limits of control groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe_agent.host import pressure
from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target

from .host_history import HISTORY, coordinates, texts, with_rates
from .live_table import HostTable, Part

__all__ = ["HostPressure"]


class HostPressure(HostTable):
    name = "host.pressure"
    doc = (
        "Pressure (PSI) on CPU, memory and I/O of the host and of each target's control group (version 1 or 2), with"
        " the group's limits; shares and rates between two readings: every 5 s for the last hour if a host server runs,"
        " once over 0.5 s otherwise. Version 1 keeps no pressure for groups. pid and rank are those of a target in the"
        " group."
    )
    columns = (
        Column("ts", "time", "UTC", "end of the interval"),
        Column("scope", "text", "", "host, or the path of the control group"),
        Column("cpu_some", "float", "", "share of the time in which some task waited for a CPU"),
        Column("memory_some", "float", "", "the same for memory: reclaim, swap, refaults"),
        Column("memory_full", "float", "", "share of the time in which all tasks that were not idle waited for memory"),
        Column("io_some", "float", "", "share of the time in which some task waited for I/O"),
        Column("io_full", "float", "", "share of the time in which all tasks that were not idle did"),
        Column("cpu_used", "float", "", "cores that the group keeps busy"),
        Column("cpu_limit", "float", "", "cores that it may use (quota); NULL without a limit"),
        Column("throttled", "float", "", "share of the periods in which it was stopped because it had used its quota"),
        Column("throttled_time", "float", "s/s", "time for which its tasks were stopped, summed over processors"),
        Column("memory_used", "float", "MiB", "memory charged to the group, page cache included"),
        Column("memory_limit", "float", "MiB", "the lowest limit of it and the groups above it; NULL without one"),
        Column("limit_hits", "float", "1/s", "times that its memory met its limit, a second"),
        Column("oom_kills", "float", "1/s", "processes in it that the OOM killer has taken, a second"),
        Column("pids_used", "float", "", "processes and threads in it"),
        Column("pids_limit", "float", "", "how many it may have; NULL without a limit"),
    )

    @classmethod
    def take_host(cls, targets: Sequence[Target]) -> tuple[Sequence[Part], Sequence[str]]:
        alive = [target for target in targets if target.is_alive]
        groups = {group: target for target in alive if (group := HISTORY.group_of(target.pid)) is not None}
        names = (*pressure.COUNTERS, *pressure.GAUGES)
        parts = []
        for scope, found in with_rates("pressure", names, also=("host", *groups)):
            if scope != "host" and scope not in groups:
                continue
            numbers = dict(found)
            periods = numbers.pop("periods")
            with np.errstate(invalid="ignore", divide="ignore"):
                numbers["throttled"] = numbers.pop("throttled_periods") / periods
            columns = {**numbers, **texts({"scope": [scope] * len(periods)})}
            parts.append(Part(coordinates(groups.get(scope)), cls.columns, [columns]))
        return parts, []
