"""Errors of the host's hardware in the kernel's log of the last day."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.check import Check, Level, Line
from probe_cli.diagnose.finding import NoEvidence
from probe_cli.diagnose.rule import Asked, Row

__all__ = ["CHECK"]

KINDS = (
    "xid",
    "memory_error",
    "pcie_error",
    "link_down",
    "hung_task",
    "lockup",
    "io_error",
    "nfs",
    "thermal",
    "oom_kill",
)
SQL = f"""
SELECT kind, code, any_value(meaning) AS meaning, count(*) AS times, CAST(max(ts) AS VARCHAR) AS latest,
    any_value(device) AS device
FROM host.kernel_log WHERE kind = 'log' OR ts > now()::TIMESTAMPTZ AT TIME ZONE 'UTC' - INTERVAL 1 DAY
    AND kind IN ({", ".join(f"'{kind}'" for kind in KINDS)})
GROUP BY kind, code
"""
#: What is over and says little about the hardware.
PASSING = ("oom_kill", "thermal", "nfs")


def read(asked: Sequence[Asked]) -> Iterable[Line]:
    for one in asked:
        if not one.rows:
            raise NoEvidence(f"the kernel's log of {one.host} cannot be read here: run `probe` as root")
        yield from (_line(one, row) for row in one.rows if row["kind"] != "log")
    yield Line(Level.OK, "no error of the hardware in the last day")


def _line(one: Asked, row: Row) -> Line:
    number = "" if row["code"] is None else f" {row['code']}"
    where = f" ({row['device']})" if row["device"] else ""
    often = "once" if row["times"] == 1 else f"{row['times']} times"
    return Line(
        Level.WARN if row["kind"] in PASSING else Level.BAD,
        f"{row['kind']}{number}{where} on {one.host}, {often} in a day, last at {row['latest'][:19]}: {row['meaning']}",
        'see the lines: `probe PID query "FROM host.kernel_log ORDER BY ts"`',
    )


CHECK = Check("kernel-log", "Has the kernel seen errors of the hardware?", SQL, read, per_host=True, is_live=True)
