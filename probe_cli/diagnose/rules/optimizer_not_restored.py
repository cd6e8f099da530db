"""A checkpoint was loaded, and the optimizer did not get its state.

Adam and its kin count their updates, in the checkpoint as well. One whose count is that of the steps since the load,
and not that of the checkpoint, began anew: with no averages its first updates are large, and the loss is worse for a
while after each resume. The state was looked for under another name than it was saved under, or was loaded into an
optimizer that is not the one in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
WITH loads AS (SELECT ts, path, updates FROM python.checkpoints
    WHERE kind = 'load' AND error IS NULL AND has_optimizer AND updates IS NOT NULL ORDER BY ts DESC LIMIT 1),
after AS (FROM python.steps WHERE ts > (SELECT ts FROM loads))
SELECT loads.path, loads.updates AS saved,
    (SELECT count(*) FROM after) AS steps, (SELECT min(step) FROM after) AS first,
    (SELECT count(*) FROM python.steps WHERE ts < loads.ts) AS before,
    (SELECT max(updates) FROM torch.parameters) AS updates
FROM loads
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no checkpoint with the state of an optimizer was loaded since the recorder came")
    (row,) = rows
    if row["steps"] < limits["steps"] or row["updates"] is None:
        raise NotApplicable("too few steps since the load, or an optimizer that counts none")
    is_of_load = row["updates"] <= 1.2 * row["steps"] + 5
    if row["saved"] < limits["saved"] or not is_of_load or row["updates"] > 0.9 * row["saved"]:
        return
    yield Finding(
        f"the optimizer was not restored: it counts {row['updates']:,} updates, the checkpoint it was to go on from"
        f" {row['saved']:,}",
        # Weights alone may be wanted of a checkpoint at the start, to train them for something else.
        Certainty.LIKELY if row["before"] else Certainty.POSSIBLE,
        share=0.5,
        since_step=row["first"],
        where=row["path"],
        evidence=(f"{row['steps']:,} steps since the load of {row['path'] or 'an object without a path'}",),
        advice=(
            "load it under the name that it was saved under, and let a missing name be an error: saved['optimizer']",
            "load it into the optimizer that steps, after its parameters were given to it",
        ),
        try_first="optimizer.load_state_dict(saved['optimizer'])",
    )


RULE = Rule(
    "optimizer-not-restored",
    "checkpoints",
    "Does the optimizer go on where the checkpoint ended?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("saved", 50, "updates in the checkpoint from which its state matters"),
        Threshold("steps", 10, "steps after the load needed to judge"),
    ),
    explains=("loss-spikes", "loss-rises", "loss-volatile"),
    is_live=True,
)
