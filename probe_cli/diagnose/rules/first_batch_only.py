"""Each step begins to read the data anew, and so gets the same batch.

`next(iter(loader))` starts a pass over the data and takes its first batch. In a loop over steps, with a loader that
does not shuffle, that is the same batch each time: the loss falls towards zero, and the model has learned these samples
by heart. Judged are loaders that read in order, over which passes are begun again and again and never ended. Where the
data set does not tell its length, they may all be in one batch: then it is possible only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT place, sampler, batch_size, samples, passes, whole_passes, batches,
    (SELECT max(step) - min(step) FROM python.steps WHERE batch_size > 0) AS steps
FROM torch.dataloaders WHERE passes > 0
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no pass over a DataLoader has begun since the recorder started")
    for row in rows:
        is_first = not row["whole_passes"] and row["batches"] <= row["passes"]
        often = row["passes"] >= max(limits["passes"], limits["share"] * (row["steps"] or 0))
        is_all = row["samples"] is not None and row["samples"] <= (row["batch_size"] or 1)
        if not is_all and row["sampler"] == "SequentialSampler" and is_first and often:
            yield Finding(
                "each step begins to read the data anew, in order, and so trains on the same batch",
                Certainty.POSSIBLE if row["samples"] is None else Certainty.LIKELY,
                share=1.0,
                where=str(row["place"]),
                evidence=(
                    f"{row['passes']} passes over the loader were begun, none came to its end, and they gave"
                    f" {row['batches']} batches",
                ),
                advice=(
                    "make the iterator once, before the loop: for batch in loader, or next() of one that is kept",
                    "shuffle the samples: shuffle=True",
                ),
                try_first="for batch in DataLoader(..., shuffle=True): ...",
            )


RULE = Rule(
    "first-batch-only",
    "numbers",
    "Does each step get other data?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("passes", 20, "passes needed to judge"),
        Threshold("share", 0.5, "of the steps with data, those that begin a pass"),
    ),
    explains=("loader-without-workers",),
    is_live=True,
)
