"""A collective waits, and torch will end the job soon.

torch gives a call its timeout when the call is made: ten minutes with NCCL, half an hour with gloo, or what the job has
set. When a quarter of it has passed, the rank that has not come should be looked for, as long as there is a process to
look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Rule, Threshold
from probe_cli.text import num_ranks, percent, seconds

__all__ = ["RULE"]

SQL = """
SELECT op, seq, "group", age, timeout FROM torch.flight_recorder
WHERE state NOT IN ('completed', 'failed') AND timeout > 0 AND NOT is_p2p ORDER BY age / timeout DESC LIMIT 1
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    waiting = {
        one.rank: row
        for one in asked
        for row in one.rows
        if row["age"] >= max(limits["seconds"], limits["share"] * row["timeout"])
    }
    if not waiting:
        return
    row = max(waiting.values(), key=lambda row: row["age"] / row["timeout"])
    yield Finding(
        f"{row['op']} {row['seq']} of group {row['group']} has waited for {percent(row['age'] / row['timeout'])} of its"
        f" timeout: torch ends the job in {seconds(max(0.0, row['timeout'] - row['age']))}",
        Certainty.CERTAIN,
        ranks=tuple(sorted(waiting)),
        evidence=(f"{num_ranks(waiting)} in it; it was called {seconds(row['age'])} ago",),
        advice=(
            "find the rank that has not come: `probe -t PID --all hang`",
            "for calls made from now on: `probe -t PID --all hang --extend-timeout SECONDS`",
        ),
        try_first="probe -t PID --all hang",
    )


RULE = Rule(
    "timeout-near",
    "hang",
    "Does a collective near its timeout?",
    SQL,
    judge,
    (
        Threshold("share", 0.25, "share of the timeout that has passed"),
        Threshold("seconds", 5.0, "seconds that a call has waited"),
    ),
    is_live=True,
)
