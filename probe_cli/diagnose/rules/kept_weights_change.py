"""The best or the old weights, kept aside, are no copy, and go on changing.

`best = model.state_dict()` holds the tensors of the model themselves, and so do a dict or a list of its parameters and
`best_model = model`. What is kept so is the newest state at the end, a penalty on the distance from it is always zero,
and the ratio of the new policy to the old one is always one. Told only of what is called best, old, previous, initial,
a snapshot, a backup or an anchor, and not where the job saves checkpoints: what is written to a file at once is a copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT place, module, tensors, shared, (SELECT count(*) FROM python.checkpoints WHERE kind = 'save') AS saves,
    (SELECT count(*) FROM python.steps) AS steps
FROM torch.kept_weights WHERE shared > 0 ORDER BY place
"""
#: The name of what is to stay as it was: "attribute `best_state` of local `self` of fit() at train.py:80".
STAYS = re.compile(r"`(\w*?(?<![a-z])(best|old|prev|previous|initial|init|snapshot|backup|anchor)(?![a-z])\w*)`", re.I)


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    named = [(row, found[1]) for row in rows if (found := STAYS.search(row["place"]))]
    named = [(row, name) for row, name in named if row["shared"] >= limits["shared"] * row["tensors"]]
    if not named:
        raise NotApplicable("no weights that are called the best or the old ones are those of a model itself")
    row, name = named[0]
    if row["saves"]:
        raise NotApplicable("the job saves checkpoints: what was kept may have been written to a file")
    if row["steps"] < limits["steps"]:
        raise NoEvidence("the job has just begun: ask again later")
    yield Finding(
        f"`{name}` holds the weights of {row['module']} themselves, no copy, and changes with each step",
        Certainty.LIKELY,
        share=0.9,
        where=row["place"],
        evidence=(f"{row['shared']} of its {row['tensors']} tensors are parameters of {row['module']}",),
        advice=(
            "keep a copy: state_dict() and parameters() give the tensors of the model, and so does dict() of them",
            "what was kept so far is lost: the weights are the newest ones",
        ),
        try_first=f"{name} = copy.deepcopy(model.state_dict())",
    )


RULE = Rule(
    "kept-weights-change",
    "numbers",
    "Do the weights that the job keeps aside stay as they were?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("shared", 0.5, "part of the tensors kept that are the model's own"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    is_live=True,
)
