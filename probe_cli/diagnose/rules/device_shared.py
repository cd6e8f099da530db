"""Another process uses memory of the job's GPU.

A job that was not killed, a notebook, a second rank on the same device: what it holds is missing here, and its kernels
take turns with ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes

__all__ = ["RULE"]

SQL = """
WITH ours AS (SELECT DISTINCT uuid FROM gpu.processes WHERE pid IS NOT NULL)
SELECT gpu, uuid, process, command, used, pid, (SELECT count(*) FROM ours) AS ours
FROM gpu.processes WHERE uuid IN (FROM ours)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no GPU is in use by a target")
    for row in rows:
        if row["pid"] is not None or (row["used"] or 0.0) < limits["mib"]:
            continue
        yield Finding(
            f"process {row['process']} ({row['command'] or 'unknown'}) uses {mebibytes(row['used'])} of GPU"
            f" {row['gpu']}, too",
            Certainty.CERTAIN,
            share=0.1,
            where=f"GPU {row['gpu']}",
            evidence=(f"GPU {row['gpu']} ({row['uuid']}) is in use by a rank of this job and by this process",),
            advice=(
                f"see whose it is, and end it if it is left over: ps -fp {row['process']}",
                "give each rank a device of its own: CUDA_VISIBLE_DEVICES, torch.cuda.set_device(local_rank)",
            ),
            try_first=f"ps -fp {row['process']}",
        )


RULE = Rule(
    "device-shared",
    "memory",
    "Does another process use the job's GPU?",
    SQL,
    of_each_rank(judge),
    (Threshold("mib", 256.0, "MiB that the other process uses"),),
    explains=("device-out-of-memory",),
    per_host=True,
)
