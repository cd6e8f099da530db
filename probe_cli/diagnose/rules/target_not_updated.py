"""A target network, or an average of the weights, never changes.

DQN, SAC and BYOL learn from a copy of the model that follows it slowly; an average of the weights (EMA) is to be better
than they are. A copy that is never written to goes unseen: `lerp` in place of `lerp_`, an update that is not called, a
condition that is never met. Named is a copy of a trained model that is called such a thing (target, ema, slow, shadow,
momentum, average) and has not changed in thousands of updates, as torch counts changes. It does not count those by way
of `.data`, so the values of the copy are watched, too, while the model is updated some hundred times. A teacher or a
reference that is to stay as it is has other names; a copy that is replaced as a whole is another one each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.copies import SQL, copies, updates_without_change
from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

NAMES = r"(target|(?<![a-z])ema(?![a-z])|slow|shadow|momentum|averag)"
#: In the name of a copy: "attribute `target` of local `agent` of main() at dqn.py:80", "attribute `model` of `ema`".
FOLLOWS = re.compile(rf"^[^`]*`(\w*?{NAMES}|(model|module|net|network|copy|weights)`[^`]*`\w*?{NAMES})", re.I)


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    found = [(copy, trained) for copy, trained in copies(rows) if FOLLOWS.search(copy["place"])]
    if not found:
        raise NotApplicable("no model is called a target or an average of a trained one")
    for copy, trained in found:
        if copy["most"] <= limits["made"] and trained["versions"] >= limits["updates"]:
            yield Finding(
                f"a copy of {trained['module']} never changes, and is to follow it by its name",
                Certainty.SUSPECTED,
                share=1.0,
                where=str(copy["place"]),
                evidence=(
                    f"{trained['module']} was changed {trained['versions']:,} times, the copy ({copy['module']})"
                    f" {copy['most']:,} times, as its weights were made",
                ),
                advice=(
                    "look at the update: operations without an underscore (lerp, mul, add) change nothing",
                    "see that it is called with each step, or every N steps, and that its condition is ever met",
                ),
                try_first="target.lerp_(source, tau)  # in place, under torch.no_grad()",
            )
            return


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """See that the copy does not change while the trained model does. Raises NoEvidence."""
    told = []
    for one in found:
        rank = one.ranks[0]
        for copy, trained in copies(await job.rows(SQL, rank)):
            if copy["place"] != one.where:
                continue
            updates = await updates_without_change(job, rank, copy["module"], trained["module"], limits["watched"])
            if updates:
                seen = f"its values stayed as they are in {updates:,} updates that were watched"
                told.append(replace(one, certainty=Certainty.LIKELY, evidence=(*one.evidence, seen)))
            break
    return told


RULE = Rule(
    "target-not-updated",
    "numbers",
    "Does a target network or an average of the weights change?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("made", 3, "changes of a parameter that its making takes: initialised, loaded"),
        Threshold("updates", 5_000, "updates of the trained model in which it should have changed"),
        Threshold("watched", 300, "updates in which its values are watched: a target may be copied only now and then"),
    ),
    is_live=True,
    look=look,
)
