"""Much of the device memory that torch has reserved cannot be used: it lies in free parts of blocks.

The allocator keeps freed blocks, and a large tensor does not fit into small ones. Sizes that change from step to step
make it worse. Segments that can grow avoid most of it; they are advised only where they are not in use. What is in
use at the peak of a step, and free between two, is not meant. Its evidence has not been seen on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes, percent

__all__ = ["RULE"]

SQL = """
SELECT device, arg_max(reserved, ts) AS reserved,
    least(arg_max(inactive, ts), greatest(arg_max(reserved, ts) - max(peak_allocated), 0)) AS inactive,
    arg_max(allocated, ts) AS allocated,
    max(retries) AS retries, max(retries) - min(retries) AS more,
    (SELECT string_agg(value, ' ') FROM process.env WHERE name IN ('PYTORCH_CUDA_ALLOC_CONF', 'PYTORCH_ALLOC_CONF'))
        AS settings
FROM torch.memory GROUP BY device
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no memory of a CUDA device is recorded")
    for row in rows:
        share = (row["inactive"] or 0.0) / row["reserved"] if row["reserved"] else 0.0
        if share < limits["share"] or row["inactive"] < limits["mib"]:
            continue
        is_set = "expandable_segments:true" in (row["settings"] or "").lower().replace(" ", "")
        advice = (
            "pad batches to a few lengths, so that sizes repeat",
            "torch.cuda.empty_cache() before a phase of another kind, such as generation",
        )
        yield Finding(
            f"{percent(share)} of what is reserved on {row['device']} is fragmented",
            Certainty.LIKELY if row["more"] else Certainty.POSSIBLE,
            share=0.1,
            where=row["device"],
            evidence=(
                f"{mebibytes(row['inactive'])} in free parts of blocks, of {mebibytes(row['reserved'])} reserved;"
                f" {mebibytes(row['allocated'])} in tensors",
                f"the allocator has flushed its cache {row['retries']} times to find memory",
            ),
            advice=advice if is_set else ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", *advice),
            try_first="probe PID memory" if is_set else "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )


RULE = Rule(
    "memory-fragmented",
    "memory",
    "Is the memory of a device fragmented?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.25, "share of reserved memory in free parts of blocks"),
        Threshold("mib", 1024.0, "MiB of it"),
    ),
    explains=("device-out-of-memory",),
    is_live=True,
)
