"""A GPU of the job reports errors.

An uncorrected memory error or an Xid of the driver ends a job sooner or later, and what was computed since may be
wrong. Xids that programs cause (13, 31, 43, 45) are theirs, not the hardware's. Never seen on a real GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT 'gpu' AS kind, device, max(ecc_uncorrected) - min(ecc_uncorrected) AS uncorrected,
    max(num_xids) AS xids, arg_max(last_xid, ts) AS code, NULL::VARCHAR AS text
FROM gpu.samples WHERE pid IS NOT NULL GROUP BY device
UNION ALL BY NAME
SELECT 'log' AS kind, device, NULL::BIGINT AS uncorrected, 1 AS xids, code, text FROM host.kernel_log
WHERE kind = 'xid' AND ts > (SELECT min(ts) FROM process.samples) LIMIT 50
"""
OF_PROGRAMS = frozenset({13, 31, 43, 45})


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no GPU of the job is known")
    for row in rows:
        code = row["code"]
        is_xid = bool(row["xids"]) and code is not None
        if not row["uncorrected"] and not is_xid:
            continue
        what = f"Xid {code}" if is_xid else f"{row['uncorrected']} uncorrected memory errors"
        yield Finding(
            f"the GPU reports errors: {what}",
            Certainty.POSSIBLE if is_xid and code in OF_PROGRAMS else Certainty.LIKELY,
            where=str(row["device"] or what),
            evidence=(str(row["text"] or f"{what} on {row['device']}"),),
            advice=(
                "take the host out of the job, and have the GPU reset or replaced",
                "go back to a checkpoint from before the first error",
            ),
            try_first="nvidia-smi -q -d ECC; dmesg | grep -i xid",
        )


RULE = Rule(
    "gpu-errors",
    "speed",
    "Do the job's GPUs report errors?",
    SQL,
    of_each_rank(judge),
    is_live=True,
)
