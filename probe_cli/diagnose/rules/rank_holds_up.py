"""The job waits for one rank, or for several.

In every collective the others wait for the rank that comes last: the slowest rank is the one that waits least. What a
rank costs is what the job would save if it took no longer for its own work than its peers. A rank is named when that is
5 % of the job's time or more with 95 % confidence, as `probe … compare` does. The phase, the module and the line are
those in which it takes longer than its peers. A rank that alone trains, for which the others act, has work of its own:
what it costs is a possible finding unless it is half of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.comparing import SQL, THRESHOLDS, blamed, comparison_of, suspect
from probe_cli.diagnose.finding import Certainty, Finding
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Rule, Threshold
from probe_cli.text import percent

__all__ = ["RULE"]

OF_THE_MODEL = (
    "see that its batches are as large and as long as those of its peers",
    "if it is a stage of a pipeline, move layers from it to the others",
    "look at its GPU's clocks",
)
#: By the phase in which the rank takes longer.
ADVICE = {
    "data_wait": ("look at that rank's data: its shard, its storage, its loader workers",),
    "forward": OF_THE_MODEL,
    "backward": OF_THE_MODEL,
    "optimizer": ("see that all ranks hold as many parameters, and what else this rank does in the optimizer's step",),
    "evaluation": ("share the evaluation among the ranks",),
    "other": ("move what only this rank does (checkpoints, logging) off the training thread, or do it less often",),
    "all phases": (
        "look for what takes its cores or its GPU: other processes, a throttled clock, its host",
        "if it is a stage of a pipeline, move layers from it to the others",
    ),
}
OF_A_LEARNER = ("let the others act with weights of an update before, while this rank learns",)
OTHERWISE = ("look at the rank beside a peer: `probe -t PID --all compare --by phase`",)


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    comparison = await comparison_of(job, found)
    verdict = comparison.verdict
    if verdict.state != "stands out" or verdict.kind == "stage":
        return []
    finding = blamed(found[0], comparison)
    evidence = [*finding.evidence]
    if verdict.share_low is not None and verdict.share_high is not None:
        low, high = percent(max(0.0, verdict.share_low)), percent(verdict.share_high)
        evidence.append(f"95 % confidence: {low} to {high} of the job's time")
    learns_alone = bool(found[0].ranks) and finding.ranks == found[0].ranks
    is_shared = learns_alone and (finding.share or 0.0) < limits["alone"]
    if learns_alone:
        evidence.append("it alone trains, and the others act for it: each waits for the other by turns")
    return [
        replace(
            finding,
            certainty=Certainty.POSSIBLE if is_shared else finding.certainty,
            evidence=tuple(evidence),
            advice=OF_A_LEARNER if learns_alone else (*ADVICE.get(verdict.where or "", ()), *OTHERWISE),
            try_first="probe -t PID --all compare",
        )
    ]


RULE = Rule(
    "rank-holds-up",
    "speed",
    "Does the job wait for one rank?",
    SQL,
    suspect,
    (*THRESHOLDS, Threshold("alone", 0.5, "share of the time from which a rank that alone trains is surely too slow")),
    explains=(
        "data-bound", "loader-without-workers", "loader-workers-busy", "collectives-dominate", "collector-pauses",
        "slower-than-best", "timeout-near", "checkpoint-one-rank",
    ),
    look=look,
)  # fmt: skip
