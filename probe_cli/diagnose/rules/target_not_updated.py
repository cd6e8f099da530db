"""A target network, or an average of the weights, never changes.

DQN, SAC and BYOL learn from a copy of the model that follows it slowly; an average of the weights (EMA) is to be better
than they are. A copy that is never written to goes unseen: `lerp` in place of `lerp_`, an update that is not called, a
condition that is never met. Named is a copy of a trained model that is called such a thing (target, ema, slow, shadow,
momentum, average) and has not changed in thousands of updates. A teacher or a reference that is to stay as it is has
other names; a copy that is replaced as a whole is another one each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.copies import SQL, copies
from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

#: In the name of the variable: "attribute `target` of local `agent` of main() at dqn.py:80".
FOLLOWS = re.compile(r"^[^`]*`\w*?(target|(?<![a-z])ema(?![a-z])|slow|shadow|momentum|averag)", re.I)


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    found = [(copy, trained) for copy, trained in copies(rows) if FOLLOWS.search(copy["place"])]
    if not found:
        raise NotApplicable("no model is called a target or an average of a trained one")
    for copy, trained in found:
        if copy["most"] <= limits["made"] and trained["versions"] >= limits["updates"]:
            yield Finding(
                f"a copy of {trained['module']} never changes, and is to follow it by its name",
                Certainty.LIKELY,
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


RULE = Rule(
    "target-not-updated",
    "numbers",
    "Does a target network or an average of the weights change?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("made", 3, "changes of a parameter that its making takes: initialised, loaded"),
        Threshold("updates", 5_000, "updates of the trained model in which it should have changed"),
    ),
    is_live=True,
)
