"""Room in /dev/shm, through which the batches of loader workers travel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.check import Check, Level, Line
from probe_cli.diagnose.finding import NoEvidence
from probe_cli.diagnose.rule import Asked
from probe_cli.text import mebibytes

__all__ = ["CHECK"]

SQL = """
SELECT shm_used, shm_size, num_workers FROM process.memory WHERE shm_size IS NOT NULL
"""
#: What a container has unless it was started with more.
OF_CONTAINERS_MIB = 64.0


def read(asked: Sequence[Asked]) -> Iterable[Line]:
    told = [(one.rank, row) for one in asked for row in one.rows]
    if not told:
        raise NoEvidence("there is no /dev/shm that can be seen")
    small = tuple(rank for rank, row in told if row["shm_size"] <= OF_CONTAINERS_MIB)
    if small:
        level = Level.BAD if any(row["num_workers"] for _, row in told) else Level.WARN
        yield Line(
            level,
            "/dev/shm has 64 MiB: loader workers die of a bus error when it is full",
            "docker run --shm-size=8g, or an emptyDir with medium: Memory",
            small,
        )
        return
    used = max(row["shm_used"] for _, row in told)
    yield Line(Level.OK, f"{mebibytes(used)} of {mebibytes(min(row['shm_size'] for _, row in told))} used")


CHECK = Check("shared-memory", "Is there room in /dev/shm?", SQL, read, ("shm-near-full",), per_host=True)
