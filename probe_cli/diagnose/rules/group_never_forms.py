"""The process group does not form.

`init_process_group` waits until all ranks of the world size have come. One that was never started, died while it
imported, or looks for the store at another address keeps all others there until the timeout, half an hour with gloo and
ten minutes with NCCL, without a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding
from probe_cli.diagnose.rule import Asked, Limits, Rule, Threshold
from probe_cli.text import num_ranks, ranks_in, ranks_text, seconds

__all__ = ["RULE"]

SQL = """
SELECT name, duration, num_come, come, late, problem FROM python.startup
WHERE phase = 'init_process_group' AND is_now
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    waiting = {one.rank: (one, row) for one in asked for row in one.rows if row["duration"] >= limits["seconds"]}
    if not waiting:
        return
    one, row = max(waiting.values(), key=lambda each: each[1]["duration"])
    come = set(waiting).union(*(ranks_in(row["come"]) for _, row in waiting.values() if row["come"]))
    missing = sorted(set(range(one.world_size)) - come)
    late = [row["late"] for _, row in waiting.values() if row["late"]]
    problems = [row["problem"] for _, row in waiting.values() if row["problem"]]
    who = f"{num_ranks(missing)} of {one.world_size} has not come" if missing else "all ranks wait"
    yield Finding(
        f"init_process_group has waited for {seconds(row['duration'])}: {who}",
        Certainty.LIKELY,
        share=1.0,
        ranks=tuple(sorted(waiting)),
        evidence=(
            f"they meet at {row['name']}; known to have come: {ranks_text(come)}",
            *late[:2],
            *problems[:1],
        ),
        advice=(
            "see that every rank was started, and read the logs of those that have not come",
            "see that MASTER_ADDR, MASTER_PORT and WORLD_SIZE are the same everywhere and that the port can be reached"
            " from every host",
        ),
        try_first="probe -t PID --all ranks; nc -zv $MASTER_ADDR $MASTER_PORT",
    )


RULE = Rule(
    "group-never-forms",
    "hang",
    "Does the process group form?",
    SQL,
    judge,
    (Threshold("seconds", 20.0, "seconds in init_process_group"),),
    explains=("job-hangs", "stalled", "rank-works-alone"),
)
