"""`host.kernel_log`: what the kernel has logged that ends or slows jobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe_agent.host import Event, LogUnreadable, events, read_log
from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target

from .host_history import coordinates, texts
from .live_table import HostTable, Part

__all__ = ["HostKernelLog"]


class HostKernelLog(HostTable):
    name = "host.kernel_log"
    doc = (
        "Events in the kernel's log, as far back as it reaches: GPU errors, OOM kills, memory and PCIe errors, links,"
        " hung tasks, disks; read when the query runs from /dev/kmsg, syslog(2) or the journal, whichever is allowed."
        " pid and rank are those of the target that the event names, NULL if it names none."
    )
    columns = (
        Column("ts", "time", "UTC", "when; by the kernel's clock since boot, which may be off by seconds in months"),
        Column(
            "kind",
            "text",
            "",
            "xid (NVIDIA), oom_kill, memory_error, pcie_error, link_down, hung_task, lockup, io_error, nfs, thermal,"
            " segfault; log: the oldest line, to tell a log without events from one that cannot be read",
        ),
        Column("code", "int", "", "number of the Xid"),
        Column("meaning", "text", "", "what it means, in words"),
        Column("process", "int", "", "process that it names, as the kernel numbers it; NULL if none"),
        Column("command", "text", "", "name of that process"),
        Column("cgroup", "text", "", "of an OOM kill, the control group of the process"),
        Column("device", "text", "", "PCI address, network device, disk or server that it names"),
        Column("text", "text", "", "the line"),
    )

    @classmethod
    def take_host(cls, targets: Sequence[Target]) -> tuple[Sequence[Part], Sequence[str]]:
        try:
            lines, source = read_log()
        except LogUnreadable as refusal:
            return [], [
                f"host.kernel_log has no rows: the kernel's log cannot be read ({refusal}); try: sudo probe, or let the"
                " user read it: group systemd-journal, CAP_SYSLOG, or sysctl kernel.dmesg_restrict=0"
            ]
        if not lines:
            return [], [f"host.kernel_log has no rows: {source} is empty"]
        reach = f"the log reaches back to here: {len(lines)} lines of {source}"
        found = [Event(lines[0].at, "log", lines[0].text, meaning=reach), *events(lines)]
        whose = {target.pid: target for target in targets}
        by_target: dict[int | None, list[Event]] = {}
        for event in found:
            by_target.setdefault(event.process if event.process in whose else None, []).append(event)
        parts = [
            Part(coordinates(None if pid is None else whose[pid]), cls.columns, [_columns(some)])
            for pid, some in by_target.items()
        ]
        return parts, []


def _columns(found: Sequence[Event]) -> dict[str, np.ndarray]:
    names = ("kind", "code", "meaning", "process", "command", "cgroup", "device", "text")
    return {
        "ts": np.array([round(event.at * 1e6) for event in found], "<i8").view("datetime64[us]"),
        **texts({name: [getattr(event, name) for event in found] for name in names}),
    }
