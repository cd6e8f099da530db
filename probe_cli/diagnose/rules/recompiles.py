"""torch.compile compiles again and again.

After the first steps nothing should be compiled any more. A function that is compiled once more has met a value that
its guards do not cover: another shape, another Python number. Each time costs seconds, and after eight times Dynamo
gives up and runs the function without compilation. What follows a graph break is compiled as a function of its own:
`graph-breaks` counts that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import seconds

__all__ = ["RULE"]

SQL = """
SELECT function, any_value(file) AS file, any_value(lineno) AS lineno, count(*) AS times,
    coalesce(sum(duration), 0) AS spent, min(step) AS since, max(step) AS newest, arg_max(reason, ts) AS reason,
    (SELECT sum(duration) FROM python.steps) AS lasted, (SELECT max(step) FROM python.steps) AS last
FROM torch.compile WHERE event = 'recompile' AND function NOT LIKE 'torch_dynamo_resume_in_%' GROUP BY function
UNION ALL BY NAME SELECT NULL AS function, 0 AS times FROM torch.compile LIMIT 100
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("torch.compile has compiled nothing since the recorder came")
    for row in rows:
        if row["times"] < limits["times"]:
            continue
        lasted = row["lasted"] or 0.0
        guard, used, hint = _parts(row["reason"] or "no reason was recorded")
        yield Finding(
            f"{row['function']} was compiled {row['times']} times more: {guard}",
            Certainty.CERTAIN if row["newest"] >= limits["step"] else Certainty.POSSIBLE,
            share=min(1.0, row["spent"] / lasted) if lasted else None,
            where=f"{row['file']}:{row['lineno']}",
            since_step=row["since"],
            evidence=(
                f"{seconds(row['spent'])} spent, the last time at step {row['newest']} of {row['last']}",
                *([f"it does not hold any more for {used}"] if used else []),
                *([f"torch says: {hint}"] if hint else []),
            ),
            advice=(
                "where the shape changes, mark it: torch._dynamo.mark_dynamic(tensor, 0), or dynamic=True",
                "where a number changes, keep it in a tensor, or as an attribute that does not change every step",
                "pad the last batch, or drop_last=True",
            ),
            try_first="TORCH_LOGS=recompiles, or torch.compile(model, dynamic=True)",
        )


def _parts(reason: str) -> tuple[str, str, str]:
    """The guard that failed, the line of code it is there for, and torch's hint; of `0/52: n == 52  # return n
    # model.py:24 in phase (HINT: torch.compile considers …)`. Empty where there is none."""
    told, _, hint = reason.partition("(HINT: ")
    guard, _, used = told.partition("  # ")
    return re.sub(r"^\d+/\d+: ", "", guard).strip(), used.strip(), hint.strip().removesuffix(")")


RULE = Rule(
    "recompiles",
    "speed",
    "Does torch.compile compile again and again?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("times", 2, "recompilations of one function"),
        Threshold("step", 10, "after this step a recompilation is certainly not part of the start"),
    ),
)
