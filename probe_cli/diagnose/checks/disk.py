"""Free space and quota where the job writes, against the size of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.check import Check, Level, Line
from probe_cli.diagnose.finding import NoEvidence
from probe_cli.diagnose.rule import Asked, Row
from probe_cli.text import mebibytes

__all__ = ["CHECK"]

SQL = """
SELECT mount, kind, is_cwd, num_open, argument, is_read_only, free, inodes_free, quota_limit - quota_used AS quota_left,
    (SELECT sum(memory) FROM torch.tensors WHERE kind IN ('parameters', 'optimizer state', 'buffers')) AS checkpoint
FROM host.disks WHERE kind <> 'tmpfs' OR is_cwd
"""
#: Checkpoints that must fit, at the least and for comfort; and what is little where their size is not known.
FEW, MANY = 2, 10
LITTLE_MIB = 10 * 1024.0
FEW_INODES = 1000


def read(asked: Sequence[Asked]) -> Iterable[Line]:
    told = [(one.rank, row) for one in asked for row in one.rows]
    if not told:
        raise NoEvidence("no mount that the job writes to can be seen")
    for rank, row in told:
        yield from (Line(*said, ranks=(rank,)) for said in _complaints(row))
    yield Line(Level.OK, "; ".join(sorted({_room(row) for _, row in told if not row["is_read_only"]})[:4]))


def _complaints(row: Row) -> Iterable[tuple[Level, str, str]]:
    left = min(row["free"], row["free"] if row["quota_left"] is None else row["quota_left"])
    remedy = "free space, write elsewhere, or keep fewer checkpoints"
    if row["is_read_only"]:
        if row["is_cwd"] or row["argument"]:
            yield Level.WARN, f"{row['mount']} is mounted read-only", "write checkpoints and logs elsewhere"
        return
    if row["checkpoint"] is None:
        if left < LITTLE_MIB:
            yield Level.WARN, _room(row), remedy
    elif left < FEW * row["checkpoint"]:
        yield Level.BAD, f"{_room(row)}, and a checkpoint of all ranks' state takes more", remedy
    elif left < MANY * row["checkpoint"]:
        yield Level.WARN, f"{_room(row)}: room for {left / row['checkpoint']:.0f} checkpoints", remedy
    if row["inodes_free"] is not None and row["inodes_free"] < FEW_INODES:
        yield Level.BAD, f"{row['mount']} has {row['inodes_free']:.0f} inodes left", "remove small files there"


def _room(row: Row) -> str:
    quota = "" if row["quota_left"] is None else f", {mebibytes(row['quota_left'])} of the quota"
    size = "" if row["checkpoint"] is None else f", a rank's state is {mebibytes(row['checkpoint'])}"
    return f"{mebibytes(row['free'])}{quota} left on {row['mount']} ({row['kind']}){size}"


CHECK = Check("disk", "Is there room for checkpoints, and quota?", SQL, read, ("checkpoint-space",), is_live=True)
