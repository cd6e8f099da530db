"""No step has ended for a long time.

Ten times the usual step, and a minute at least, is longer than an odd step takes. The job hangs, or does something
else: a validation, a checkpoint, a compilation. `probe … hang` looks twice and tells one from the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.endpoint import Report
from probe_cli.text import seconds

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS steps, max(step) AS last, median(duration) AS usual, max(duration) AS longest,
    epoch(now()::TIMESTAMPTZ) - epoch(max(ts)) AS since
FROM python.steps
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["steps"]:
        raise NoEvidence("no step has ended since the recorder came")
    if row["since"] < max(limits["seconds"], limits["times"] * row["usual"], 1.5 * row["longest"]):
        return
    yield Finding(
        f"no step has ended for {seconds(row['since'])}; a step usually takes {seconds(row['usual'])}",
        Certainty.LIKELY,
        share=1.0,
        since_step=row["last"],
        evidence=(f"step {row['last']} was the last; the longest of {row['steps']} took {seconds(row['longest'])}",),
        advice=(
            "see whether it hangs, and in what: `probe -t PID --all hang`",
            "see the stacks: `probe PID backtrace`",
        ),
        try_first="probe -t PID --all hang",
    )


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """The same without ranks that have ended. Raises NotApplicable for a report: its clock stands still."""
    if any(isinstance(endpoint, Report) for endpoint in job.targets):
        raise NotApplicable("a report is of a moment: nothing moves in it")
    return [one for one in found if job.endpoints_of(one.ranks)]


RULE = Rule(
    "stalled",
    "hang",
    "Has a step ended lately?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("seconds", 60.0, "seconds without a step"),
        Threshold("times", 10.0, "multiple of the usual step"),
    ),
    look=look,
)
