"""Each epoch gets its samples in the same order.

DistributedSampler draws its order from its seed and the epoch that it was told. Without `set_epoch` that is the same
order each time, on each rank: the ranks never see each other's samples, and batches never mix. Known once a second pass
over the data has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT place, sampler, sampler_epoch, passes, whole_passes FROM torch.dataloaders
WHERE sampler = 'DistributedSampler' AND sampler_shuffles
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no loader has a DistributedSampler that shuffles")
    for row in rows:
        if row["sampler_epoch"] == 0 and (row["whole_passes"] or 0) >= limits["passes"]:
            yield Finding(
                "each epoch gets its samples in the same order: the sampler was never told the epoch",
                Certainty.LIKELY,
                share=0.1,
                where=str(row["place"]),
                evidence=(f"{row['whole_passes']} whole passes, and the epoch of {row['sampler']} is still 0",),
                advice=("tell it at the start of each epoch; Lightning and Accelerate do so by themselves",),
                try_first="loader.sampler.set_epoch(epoch)",
            )


RULE = Rule(
    "same-order-each-epoch",
    "numbers",
    "Are samples shuffled anew in each epoch?",
    SQL,
    of_each_rank(judge),
    (Threshold("passes", 2, "whole passes over the data since the recorder started"),),
    is_live=True,
)
