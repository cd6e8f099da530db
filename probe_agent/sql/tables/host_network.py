"""`host.network`: traffic, errors and congestion of the host's network devices, as rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe_agent.host import network
from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target

from .host_history import coordinates, texts, with_rates
from .live_table import HostTable, Part

__all__ = ["HostNetwork"]


class HostNetwork(HostTable):
    name = "host.network"
    doc = (
        "Network of the host, as rates between two readings of the kernel's counters: every 5 s for the last hour if a"
        " host server runs, once over 0.5 s otherwise. A device is as the server sees it; NULL is what it does not"
        " count. InfiniBand and RoCE were not run on hardware."
    )
    columns = (
        Column("ts", "time", "UTC", "end of the interval"),
        Column("device", "text", "", "eth0; mlx5_0/1 for port 1 of an InfiniBand or RoCE adapter; tcp for all of TCP"),
        Column("is_up", "bool", "", "its link is up; NULL of tcp"),
        Column("speed", "float", "MiB/s", "what its link can carry; NULL if unknown"),
        Column("received", "float", "MiB/s", "data received"),
        Column("sent", "float", "MiB/s", "data sent"),
        Column("received_packets", "float", "1/s", "packets received; of tcp, segments"),
        Column("sent_packets", "float", "1/s", "packets sent; of tcp, segments"),
        Column("errors", "float", "1/s", "packets received or sent with an error; of a port, symbol errors too"),
        Column("drops", "float", "1/s", "packets dropped for lack of room, in either direction"),
        Column(
            "retransmits", "float", "1/s", "packets sent again: of tcp, segments; of a port, after a time-out or NAK"
        ),
        Column("congestion_marks", "float", "1/s", "RoCE packets received with a mark of congestion (ECN)"),
        Column("congestion_notices", "float", "1/s", "RoCE notices of congestion (CNP) that have slowed this sender"),
        Column("link_downs", "float", "1/s", "times that the link went down, a second; more than 0 is worth a look"),
        Column("link_recoveries", "float", "1/s", "times that an InfiniBand link has recovered by itself, a second"),
    )

    @classmethod
    def take_host(cls, targets: Sequence[Target]) -> tuple[Sequence[Part], Sequence[str]]:
        try:
            found = list(with_rates("network", (*network.COUNTERS, *network.GAUGES)))
        except OSError as error:
            return [], [f"host.network has no rows: {error}"]
        parts = []
        for device, numbers in found:
            is_up = [None if np.isnan(up) else bool(up) for up in numbers["is_up"]]
            columns = {**numbers, **texts({"device": [device] * len(is_up), "is_up": is_up})}
            parts.append(Part(coordinates(None), cls.columns, [columns]))
        return parts, [] if parts else ["host.network has no rows: no network device can be read"]
