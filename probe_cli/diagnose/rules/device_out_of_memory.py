"""The device's memory is full: torch's allocator empties its cache to go on.

Each retry waits for the device and gives everything that is not in use back to the driver. The next request is
answered by the driver, which takes a hundred times longer. It is the last stage before an out-of-memory error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes, percent

__all__ = ["RULE"]

SQL = """
SELECT device, max(retries) - min(retries) AS retries, max(retries) AS ever, max(ooms) AS ooms,
    arg_max(allocated, ts) AS allocated, max(peak_allocated) AS peak, arg_max(reserved, ts) AS reserved,
    arg_max(inactive, ts) AS inactive, min(step) FILTER (retries > 0) AS since, max(step) AS last,
    (SELECT max(memory_total) FROM gpu.samples AS g WHERE g.device = memory.device) AS total
FROM torch.memory AS memory GROUP BY device
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no device memory: the job runs on the CPU")
    for row in rows:
        if row["ever"] < limits["retries"] and not row["ooms"]:
            continue
        fragmented = (row["inactive"] or 0.0) / row["reserved"] if row["reserved"] else 0.0
        size = "" if row["total"] is None else f" of {mebibytes(row['total'])}"
        what = f"{row['ooms']} out-of-memory errors" if row["ooms"] else f"{row['ever']} retries of the allocator"
        yield Finding(
            f"{row['device']} has run out of memory: {what}",
            Certainty.CERTAIN,
            where=row["device"],
            since_step=row["since"],
            evidence=(
                f"allocated {mebibytes(row['allocated'])}, at most {mebibytes(row['peak'])}, reserved"
                f" {mebibytes(row['reserved'])}{size}",
                f"{percent(fragmented)} of what is reserved lies in free parts of blocks that are in use",
            ),
            advice=(
                *(
                    ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: much of it is fragmentation",)
                    if fragmented > limits["fragmented"]
                    else ()
                ),
                "see what the memory holds: `probe PID memory`",
                "activations: a smaller batch with gradient accumulation, activation checkpointing, bf16",
                "optimizer state: shard it (FSDP, ZeRO), or an 8-bit optimizer",
            ),
            try_first="probe PID memory",
        )


RULE = Rule(
    "device-out-of-memory",
    "memory",
    "Has a device run out of memory, or is it about to?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("retries", 1, "retries of the allocator since the start"),
        Threshold("fragmented", 0.25, "share of reserved memory that counts as fragmentation"),
    ),
)
